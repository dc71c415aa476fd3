"""The commands that work on the registry's database itself."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.registry.builders import make_ready, publication_of
from weightshift.cli.main import main
from weightshift.contracts.identity import Service
from weightshift.local.postgres import PostgresAddress
from weightshift.registry.migrate import migrate
from weightshift.registry.sql import migrations
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.tokens import PostgresTokens, token_id

Run = Callable[..., Any]


@pytest.fixture
def run(
    database: PostgresAddress, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command in a thread of its own, as it brings its own event loop; returns code and JSON."""
    monkeypatch.setenv("WEIGHTSHIFT_REGISTRY_DSN", database.application_dsn)
    monkeypatch.setenv("WEIGHTSHIFT_REGISTRY_OWNER_DSN", database.owner_dsn)

    async def run_command(*arguments: str) -> tuple[int, Any]:
        code = await asyncio.to_thread(main, [*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run_command


async def test_a_token_is_issued_listed_and_revoked(run: Run, postgres_registry: PostgresRegistry) -> None:
    tokens = PostgresTokens(database=postgres_registry.database)
    code, issued = await run("token", "issue", "--role", "operator", "--subject", "ada", "--model", "ranker")
    assert (code, issued["token_id"]) == (0, token_id(issued["token"]))
    grant = await tokens.grant(issued["token"])
    assert grant is not None
    assert (grant.role, grant.subject, grant.model, grant.environment) == ("operator", "ada", "ranker", "*")
    code, listed = await run("token", "list")
    assert issued["token"] not in json.dumps(listed)
    (mine,) = (one for one in listed["tokens"] if one["token_id"] == issued["token_id"])
    assert (mine["subject"], mine["revoked_at"]) == ("ada", None)
    assert (await run("token", "revoke", issued["token_id"]))[0] == 0
    assert await tokens.grant(issued["token"]) is None
    code, answer = await run("token", "revoke", issued["token_id"])
    assert (code, answer["error"]["type"]) == (2, "InvalidInput")


@pytest.mark.parametrize(
    "arguments",
    [("--role", "runtime"), ("--role", "runtime", "--model", "ranker"), ("--role", "metrics", "-e", "test")],
)
async def test_a_token_nobody_should_hold_is_not_issued(run: Run, arguments: tuple[str, ...]) -> None:
    code, answer = await run("token", "issue", "--subject", "x", *arguments)
    assert (code, answer["error"]["type"]) == (2, "InvalidInput")


async def test_metrics_tokens_are_issued(run: Run) -> None:
    code, issued = await run("token", "issue", "--role", "metrics", "--subject", "prometheus")
    assert (code, issued["token"].startswith("weightshift_")) == (0, True)


async def test_the_database_is_migrated(run: Run, database: PostgresAddress) -> None:
    code, answer = await run("registry", "migrate")
    assert (code, answer) == (0, {"version": migrations()[-1].version})
    await migrate(owner_dsn=database.owner_dsn, application_role=database.application_role)


async def test_counters_are_recovered(
    run: Run, postgres_registry: PostgresRegistry, service: Service
) -> None:
    await make_ready(postgres_registry, service, "v41")
    await postgres_registry.publish(publication_of(service))
    code, answer = await run(
        *("registry", "recover", "-e", service.environment, "--operator", "ada"),
        *("--revision-at-least", "50", "--epoch-at-least", "9"),
    )
    assert code == 0
    (recovered,) = answer["services"]
    assert (recovered["revision_before"], recovered["revision"], recovered["epoch"]) == (1, 50, 9)
