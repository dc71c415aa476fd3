"""What only the database can promise: roles, migrations, and answers in bounded time."""

import asyncio
import secrets
from contextlib import suppress

import asyncpg
import pytest

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import Publication
from weightshift.errors import InvalidInput, RegistryUnreachable, SchemaMismatch
from weightshift.local.postgres import PostgresAddress
from weightshift.registry.chain import broken_rows
from weightshift.registry.migrate import migrate
from weightshift.registry.sql import migrations
from weightshift.registry.store import PostgresRegistry


def publication_of(service: Service) -> Publication:
    return Publication(
        service=service,
        cohort=Cohort.CANARY,
        artifact_id="v41",
        expected_revision=0,
        fence=Fence(epoch=0, sequence=1),
        operation_id="R1/1",
        release_id="R1",
        operator="ada",
    )


async def make_ready(registry: PostgresRegistry, service: Service) -> None:
    record = ArtifactRecord(
        model=service.model,
        artifact_id="v41",
        manifest_uri="file:///v41",
        manifest_sha256="a" * 64,
        feature_schema="features-1",
    )
    await registry.register_artifact(record, operator="ada")
    await registry.approve_artifact(service.model, "v41", operator="bob")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET summary = 'rewritten'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "DROP TABLE audit",
        "ALTER TABLE audit DISABLE TRIGGER ALL",
        "UPDATE revision_assignment SET artifact_id = 'v1'",
        "UPDATE model_artifact SET manifest_sha256 = repeat('b', 64)",
        "DELETE FROM deployment_target",
        "UPDATE access_token SET role = 'operator'",
        "INSERT INTO schema_migration (version, name) VALUES (99, 'forged')",
    ],
)
async def test_the_application_role_cannot_rewrite_history(database: PostgresAddress, statement: str) -> None:
    connection = await asyncpg.connect(database.application_dsn)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_row_altered_by_the_owner_breaks_the_chain(
    postgres_registry: PostgresRegistry, owner: "asyncpg.Connection[asyncpg.Record]", service: Service
) -> None:
    await make_ready(postgres_registry, service)
    await postgres_registry.publish(publication_of(service))
    await owner.execute("UPDATE audit SET operator = 'eve' WHERE environment = $1", service.environment)
    assert broken_rows(await postgres_registry.audit(service)) == (1,)


async def test_a_revision_cannot_name_two_artifacts(
    postgres_registry: PostgresRegistry, owner: "asyncpg.Connection[asyncpg.Record]", service: Service
) -> None:
    await make_ready(postgres_registry, service)
    await postgres_registry.publish(publication_of(service))
    await owner.execute(
        "INSERT INTO model_artifact SELECT model_name, 'v42', manifest_uri, manifest_sha256, feature_schema "
        "FROM model_artifact WHERE model_name = $1",
        service.model,
    )
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await owner.execute(
            "UPDATE deployment_target SET artifact_id = 'v42' WHERE model_name = $1", service.model
        )
    with pytest.raises(asyncpg.UniqueViolationError):
        await owner.execute(
            "INSERT INTO revision_assignment VALUES ($1, $2, 1, 'v42')", service.model, service.environment
        )


async def test_migrating_again_changes_nothing(database: PostgresAddress) -> None:
    versions = await asyncio.gather(
        *(migrate(owner_dsn=database.owner_dsn, application_role=database.application_role) for _ in range(3))
    )
    assert versions == [migrations()[-1].version] * 3


@pytest.fixture
async def empty_database(
    database: PostgresAddress, owner: "asyncpg.Connection[asyncpg.Record]"
) -> PostgresAddress:
    name = f"empty_{secrets.token_hex(4)}"
    await owner.execute(f"CREATE DATABASE {name}")
    return PostgresAddress(
        port=database.port,
        owner_dsn=database.owner_dsn.rpartition("/")[0] + f"/{name}",
        application_dsn=database.application_dsn.rpartition("/")[0] + f"/{name}",
    )


async def test_a_database_without_the_schema_is_refused(empty_database: PostgresAddress) -> None:
    with pytest.raises(SchemaMismatch, match="weightshift registry migrate"):
        await PostgresRegistry.connect(dsn=empty_database.application_dsn)


async def test_a_database_ahead_of_the_code_is_refused(empty_database: PostgresAddress) -> None:
    role = empty_database.application_role
    await migrate(owner_dsn=empty_database.owner_dsn, application_role=role)
    connection = await asyncpg.connect(empty_database.owner_dsn)
    await connection.execute("INSERT INTO schema_migration (version, name) VALUES (9999, 'later')")
    await connection.close()
    with pytest.raises(SchemaMismatch, match="9999"):
        await migrate(owner_dsn=empty_database.owner_dsn, application_role=role)
    with pytest.raises(SchemaMismatch, match="9999"):
        await PostgresRegistry.connect(dsn=empty_database.application_dsn)


async def test_a_role_that_could_rewrite_the_audit_is_refused(database: PostgresAddress) -> None:
    with pytest.raises(InvalidInput, match="owner's rights"):
        await migrate(owner_dsn=database.owner_dsn, application_role="weightshift_owner")
    with pytest.raises(InvalidInput, match="does not exist"):
        await migrate(owner_dsn=database.owner_dsn, application_role="nobody_has_this")


async def test_a_failed_migration_leaves_no_trace(empty_database: PostgresAddress) -> None:
    with pytest.raises(InvalidInput):
        await migrate(owner_dsn=empty_database.owner_dsn, application_role="nobody_has_this")
    connection = await asyncpg.connect(empty_database.owner_dsn)
    tables = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
    await connection.close()
    assert tables == 0


async def test_a_database_that_is_away_is_unreachable(database: PostgresAddress) -> None:
    dsn = database.application_dsn.replace(str(database.port), "1")
    with pytest.raises(RegistryUnreachable):
        await PostgresRegistry.connect(dsn=dsn, timeout=1.0)


async def test_a_wrong_password_is_unreachable_and_not_repeated(database: PostgresAddress) -> None:
    dsn = database.application_dsn.replace("weightshift_application:", "weightshift_application:wrong")
    with pytest.raises(RegistryUnreachable) as caught:
        await PostgresRegistry.connect(dsn=dsn, timeout=5.0)
    assert "wrong" not in str(caught.value)


async def test_an_exhausted_pool_is_unreachable_in_time(database: PostgresAddress, service: Service) -> None:
    registry = await PostgresRegistry.connect(dsn=database.application_dsn, pool_size=1, timeout=0.3)
    holding = asyncio.Event()

    async def hold_the_only_connection() -> None:
        async with registry.database.connection():
            holding.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold_the_only_connection())
    await holding.wait()
    with pytest.raises(RegistryUnreachable):
        await registry.targets(service)
    with pytest.raises(RegistryUnreachable):
        await holder
    await registry.close()


async def test_a_server_without_a_connection_left_is_unreachable_in_time(
    empty_database: PostgresAddress, owner: "asyncpg.Connection[asyncpg.Record]", service: Service
) -> None:
    await migrate(owner_dsn=empty_database.owner_dsn, application_role=empty_database.application_role)
    name = empty_database.owner_dsn.rpartition("/")[2]
    registry = await PostgresRegistry.connect(dsn=empty_database.application_dsn, pool_size=5, timeout=2.0)
    await owner.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 1")
    async with registry.database.connection():
        with pytest.raises(RegistryUnreachable):
            await registry.targets(service)
    with pytest.raises(RegistryUnreachable):
        await PostgresRegistry.connect(dsn=empty_database.application_dsn, timeout=2.0)
    assert (await registry.targets(service)).canary is None
    await registry.close()


async def test_more_callers_than_connections_wait_their_turn(
    database: PostgresAddress, service: Service
) -> None:
    registry = await PostgresRegistry.connect(dsn=database.application_dsn, pool_size=2, timeout=20.0)
    await make_ready(registry, service)
    results = await asyncio.gather(*(registry.targets(service) for _ in range(200)))
    assert len(results) == 200
    await registry.close()


async def test_connections_cut_by_the_server_are_replaced(
    postgres_registry: PostgresRegistry, owner: "asyncpg.Connection[asyncpg.Record]", service: Service
) -> None:
    await owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'weightshift_application'"
    )
    # The pool may lend the connection that was just cut once more; the one after it is new.
    with suppress(RegistryUnreachable):
        await postgres_registry.targets(service)
    await make_ready(postgres_registry, service)


async def test_a_writer_frozen_in_its_transaction_does_not_hold_the_others_up(
    database: PostgresAddress, service: Service
) -> None:
    registry = await PostgresRegistry.connect(dsn=database.application_dsn, timeout=1.0)
    await make_ready(registry, service)
    async with registry.database.connection() as connection:
        limit = await connection.fetchval("SHOW idle_in_transaction_session_timeout")
    assert limit == "500ms"
    # A connection with the same limit, outside the pool, so that no client-side timeout helps it.
    frozen = await asyncpg.connect(
        database.application_dsn, server_settings={"idle_in_transaction_session_timeout": limit}
    )
    await frozen.execute("BEGIN")
    await frozen.execute("INSERT INTO service_counter VALUES ($1, $2)", service.model, service.environment)
    target = await registry.publish(publication_of(service))
    assert target.revision == 1
    frozen.terminate()
    await registry.close()
