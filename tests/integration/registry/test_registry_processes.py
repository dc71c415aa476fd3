"""The registry's programs, run as an operator runs them."""

import os
import subprocess
import sys
from pathlib import Path

import asyncpg

from weightshift.local.ports import free_ports
from weightshift.local.postgres import PostgresAddress
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, python_module, running
from weightshift.registry.sql import migrations
from weightshift.registry.store import PostgresRegistry


def run(module: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_migration_program_brings_a_database_up_to_date(database: PostgresAddress) -> None:
    done = run(
        "weightshift.registry.migrate",
        WEIGHTSHIFT_REGISTRY_OWNER_DSN=database.owner_dsn,
        WEIGHTSHIFT_REGISTRY_APPLICATION_ROLE=database.application_role,
    )
    assert done.returncode == 0
    assert f"schema version {migrations()[-1].version}" in done.stderr


async def test_the_service_migrates_when_it_starts_with_the_owners_connection(
    database: PostgresAddress, tmp_path: Path
) -> None:
    owner = await asyncpg.connect(database.owner_dsn)
    await owner.execute("CREATE DATABASE fresh")
    await owner.close()
    (port,) = free_ports(1)
    fresh = PostgresAddress(
        port=database.port,
        owner_dsn=database.owner_dsn.rpartition("/")[0] + "/fresh",
        application_dsn=database.application_dsn.rpartition("/")[0] + "/fresh",
    )
    spec = ProcessSpec(
        name="registry",
        command=python_module("weightshift.registry.service"),
        environment={
            "WEIGHTSHIFT_REGISTRY_DSN": fresh.application_dsn,
            "WEIGHTSHIFT_REGISTRY_OWNER_DSN": fresh.owner_dsn,
            "WEIGHTSHIFT_REGISTRY_PORT": str(port),
        },
        ready=answers(port, "/healthz"),
    )
    async with running(ManagedProcess(spec=spec, directory=tmp_path)):
        registry = await PostgresRegistry.connect(dsn=fresh.application_dsn)
        await registry.close()


def test_a_migration_without_the_owners_connection_says_so() -> None:
    done = run("weightshift.registry.migrate")
    assert done.returncode == 2
    assert "WEIGHTSHIFT_REGISTRY_OWNER_DSN is not set" in done.stderr


def test_a_database_that_is_away_ends_the_service_with_one_sentence(database: PostgresAddress) -> None:
    dsn = database.application_dsn.replace(str(database.port), "1")
    done = run("weightshift.registry.service", WEIGHTSHIFT_REGISTRY_DSN=dsn)
    assert done.returncode == 5
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert dsn not in done.stderr
