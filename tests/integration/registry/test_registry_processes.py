"""The registry's programs, run as an operator runs them."""

import os
import subprocess
import sys

from weightshift.local.postgres import PostgresAddress
from weightshift.registry.sql import migrations


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


def test_a_database_that_is_away_ends_the_service_with_one_sentence(database: PostgresAddress) -> None:
    dsn = database.application_dsn.replace(str(database.port), "1")
    done = run("weightshift.registry.service", WEIGHTSHIFT_REGISTRY_DSN=dsn)
    assert done.returncode == 5
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert dsn not in done.stderr
