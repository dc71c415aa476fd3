"""The LISTEN connection against a real database, through a relay that can fall silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.local.postgres import PostgresAddress
from weightshift.registry import watch
from weightshift.registry.listener import APPLICATION_NAME, TargetListener
from weightshift.registry.postgres.targets import TARGET_CHANNEL
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.watch import TargetBell, await_target

LONG = 60.0
PATIENCE = 20.0


class Relay:
    """Passes bytes between clients and the database, until it is told to fall silent."""

    def __init__(self, *, port: int) -> None:
        self._database_port = port
        self._pumps: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def fall_silent(self) -> None:
        """Stop passing bytes on the connections there are, which stay open; new ones work."""
        for pump in self._pumps:
            pump.cancel()
        self._pumps = []

    async def stop(self) -> None:
        self.fall_silent()
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._database_port)
        self._writers += [writer, upstream_writer]
        self._pumps += [
            asyncio.create_task(_pump(reader, upstream_writer)),
            asyncio.create_task(_pump(upstream_reader, writer)),
        ]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while content := await reader.read(65_536):
            writer.write(content)
            await writer.drain()
        writer.close()


@pytest.fixture
async def relay(database: PostgresAddress) -> AsyncIterator[Relay]:
    relay = Relay(port=database.port)
    yield relay
    await relay.stop()


@pytest.fixture
async def listener(database: PostgresAddress, relay: Relay) -> AsyncIterator[TargetListener]:
    port = await relay.start()
    dsn = database.application_dsn.replace(str(database.port), str(port))
    listener = TargetListener(dsn=dsn, bell=TargetBell(), heartbeat=0.05, timeout=1.0)
    task = asyncio.create_task(listener.run())
    async with asyncio.timeout(PATIENCE):
        await listener.listening.wait()
    yield listener
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whatever wakes a waiter in these tests is the listener."""
    monkeypatch.setattr(watch, "POLL_SECONDS", LONG)


async def publish(registry: PostgresRegistry, service: Service) -> Target:
    record = ArtifactRecord(
        model=service.model,
        artifact_id="v41",
        manifest_uri="file:///v41",
        manifest_sha256="a" * 64,
        feature_schema="features-1",
    )
    await registry.register_artifact(record, operator="ada")
    await registry.approve_artifact(service.model, "v41", operator="bob")
    return await registry.publish(
        Publication(
            service=service,
            cohort=Cohort.CANARY,
            artifact_id="v41",
            fence=Fence(epoch=0, sequence=1),
            operation_id="R1/1",
            release_id="R1",
            operator="ada",
        )
    )


async def waiting(
    registry: PostgresRegistry, listener: TargetListener, service: Service
) -> "asyncio.Task[Target | None]":
    """Start a waiter that has read, and now depends on being woken."""
    read = asyncio.Event()

    class Reading(PostgresRegistry):
        async def targets(self, service: Service) -> Targets:
            targets = await super().targets(service)
            read.set()
            return targets

    reading = Reading(database=registry.database)
    task = asyncio.create_task(
        await_target(reading, listener.bell, service, Cohort.CANARY, known=0, wait=LONG)
    )
    async with asyncio.timeout(PATIENCE):
        await read.wait()
    return task


async def test_a_publication_anywhere_wakes_the_waiter(
    postgres_registry: PostgresRegistry, listener: TargetListener, service: Service
) -> None:
    task = await waiting(postgres_registry, listener, service)
    target = await publish(postgres_registry, service)
    async with asyncio.timeout(PATIENCE):
        assert await task == target


async def test_what_was_published_while_the_connection_was_silent_is_not_missed(
    postgres_registry: PostgresRegistry, listener: TargetListener, relay: Relay, service: Service
) -> None:
    task = await waiting(postgres_registry, listener, service)
    relay.fall_silent()
    target = await publish(postgres_registry, service)
    async with asyncio.timeout(PATIENCE):
        assert await task == target


async def test_a_connection_cut_by_the_server_is_replaced(
    postgres_registry: PostgresRegistry,
    listener: TargetListener,
    owner: "asyncpg.Connection[asyncpg.Record]",
    service: Service,
) -> None:
    task = await waiting(postgres_registry, listener, service)
    await owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
        APPLICATION_NAME,
    )
    target = await publish(postgres_registry, service)
    async with asyncio.timeout(PATIENCE):
        assert await task == target


async def test_a_notification_that_cannot_be_read_wakes_everybody(
    postgres_registry: PostgresRegistry,
    listener: TargetListener,
    owner: "asyncpg.Connection[asyncpg.Record]",
    service: Service,
) -> None:
    with listener.bell.waiter(service) as rung:
        rung.clear()
        await owner.execute("SELECT pg_notify($1, 'not a service')", TARGET_CHANNEL)
        async with asyncio.timeout(PATIENCE):
            await rung.wait()
