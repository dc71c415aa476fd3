import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from weightshift.contracts.identity import Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.local.postgres import PostgresAddress, postgres_server
from weightshift.registry.base import Registry
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.migrate import migrate
from weightshift.registry.store import PostgresRegistry


@pytest.fixture(scope="session")
async def database(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PostgresAddress]:
    async with postgres_server(tmp_path_factory.mktemp("registry")) as address:
        await migrate(owner_dsn=address.owner_dsn, application_role=address.application_role)
        yield address


@pytest.fixture
async def postgres_registry(database: PostgresAddress) -> AsyncIterator[PostgresRegistry]:
    registry = await PostgresRegistry.connect(dsn=database.application_dsn)
    yield registry
    await registry.close()


@pytest.fixture(params=["memory", "postgres"])
def registry(request: pytest.FixtureRequest) -> Registry:
    """Each test that asks for this states what every registry promises, whichever store is behind it."""
    if request.param == "memory":
        return MemoryRegistry()
    registry: Registry = request.getfixturevalue("postgres_registry")
    return registry


@pytest.fixture
async def owner(database: PostgresAddress) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(database.owner_dsn)
    yield connection
    await connection.close()


@pytest.fixture
def service() -> Service:
    """A service of the test's own, so that tests share a database without sharing rows."""
    return Service(model=f"ranker-{secrets.token_hex(4)}", environment=f"test-{secrets.token_hex(4)}")


@pytest.fixture
def ready(registry: Registry, service: Service) -> Callable[..., Awaitable[None]]:
    """Registers and approves artifacts of the service."""

    async def make_ready(*artifact_ids: str) -> None:
        for artifact_id in artifact_ids:
            record = ArtifactRecord(
                model=service.model,
                artifact_id=artifact_id,
                manifest_uri=f"file:///{artifact_id}",
                manifest_sha256="a" * 64,
                feature_schema="features-1",
            )
            await registry.register_artifact(record, operator="ada")
            await registry.approve_artifact(service.model, artifact_id, operator="bob")

    return make_ready
