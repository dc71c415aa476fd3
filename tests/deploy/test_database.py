"""The database as docs/kubernetes.md has people make it: roles without special rights are enough."""

import re
from datetime import timedelta
from pathlib import Path

import asyncpg

from tests.deploy.manifests import ROOT
from weightshift.local.postgres import postgres_server
from weightshift.registry.migrate import migrate
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.tokens import Role, issue_token

PASSWORD = "a-password-of-the-test"
# The server of the test has its own roles of the documented names already.
RENAMED = {
    "weightshift_owner": "documented_owner",
    "weightshift_application": "documented_application",
    "DATABASE weightshift": "DATABASE documented",
}


def documented_statements() -> list[str]:
    statements = re.findall(r'^psql .* -c "(.+)"$', (ROOT / "docs/kubernetes.md").read_text(), re.MULTILINE)
    found = []
    for statement in statements:
        text = re.sub(r"\$[A-Z_]+", PASSWORD, statement)
        for name, other in RENAMED.items():
            text = text.replace(name, other)
        found.append(text)
    return found


async def test_the_documented_roles_are_enough(tmp_path: Path) -> None:
    async with postgres_server(tmp_path) as server:
        administrator = await asyncpg.connect(server.owner_dsn)
        statements = documented_statements()
        assert len(statements) == 3
        for statement in statements:
            await administrator.execute(statement)
        assert not await administrator.fetchval(
            "SELECT bool_or(rolsuper) FROM pg_roles WHERE rolname LIKE 'documented%'"
        )
        await administrator.close()
        owner, application = (
            f"postgresql://documented_{role}:{PASSWORD}@127.0.0.1:{server.port}/documented"
            for role in ("owner", "application")
        )
        await migrate(owner_dsn=owner, application_role="documented_application")
        assert await issue_token(
            dsn=application, role=Role.RUNTIME, subject="gpu-pool", model="ranker", environment="production"
        )
        registry = await PostgresRegistry.connect(dsn=application)
        second = timedelta(seconds=1)
        health = await registry.health(lost_after=second, mismatch_after=second)
        await registry.close()
        assert health.cohorts == ()
