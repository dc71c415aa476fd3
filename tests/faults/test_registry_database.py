"""The registry's database dies, or its answer is lost: everything or nothing, and a repeat tells which."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from tests.integration.registry.builders import make_ready, publication_of
from weightshift.contracts.evidence import AuditHead
from weightshift.contracts.identity import Service
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.errors import RegistryUnreachable
from weightshift.local.ports import free_ports
from weightshift.local.postgres import (
    PostgresAddress,
    create_database,
    postgres_address,
    postgres_spec,
    prepare_postgres,
)
from weightshift.local.processes import ManagedProcess
from weightshift.registry.migrate import migrate
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.verify import verify_chain

SERVICE = Service(model="ranker", environment="test")
PATIENCE = 60.0
PUBLISHERS, PUBLICATIONS = 6, 40


@dataclass(frozen=True, kw_only=True)
class Database:
    """A server of the test's own, which it may kill."""

    directory: Path
    process: ManagedProcess
    address: PostgresAddress

    async def crash(self) -> None:
        """Stop it as `pg_ctl -m immediate` does: no checkpoint, every session cut."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGQUIT)
        await self.process.stop()

    async def start(self) -> None:
        await prepare_postgres(self.directory)
        await self.process.start()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    (port,) = free_ports(1)
    await prepare_postgres(tmp_path)
    process = ManagedProcess(spec=postgres_spec(tmp_path, port), directory=tmp_path)
    await process.start()
    try:
        await create_database(tmp_path, port)
        address = postgres_address(tmp_path, port)
        await migrate(owner_dsn=address.owner_dsn, application_role=address.application_role)
        yield Database(directory=tmp_path, process=process, address=address)
    finally:
        await process.stop()


@pytest.fixture
async def registry(database: Database) -> AsyncIterator[PostgresRegistry]:
    registry = await PostgresRegistry.connect(dsn=database.address.application_dsn, timeout=5.0)
    await make_ready(registry, SERVICE, "v41")
    yield registry
    await registry.close()


async def until_it_counts(registry: PostgresRegistry, publication: Publication) -> Target:
    """What every caller does: repeat the same operation until there is an answer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(RegistryUnreachable):
                return await registry.publish(publication)
            await asyncio.sleep(0.05)


async def test_a_transaction_that_the_crash_cut_left_nothing(
    database: Database, registry: PostgresRegistry
) -> None:
    publication = publication_of(SERVICE, operation_id="R1/1")
    blocker = await asyncpg.connect(database.address.owner_dsn)
    await blocker.execute("BEGIN")
    # The last step of a publication: its target is written by then, but not committed.
    await blocker.execute(
        "SELECT pg_advisory_xact_lock(hashtext('weightshift audit'), hashtext($1))", SERVICE.environment
    )
    publishing = asyncio.create_task(registry.publish(publication))
    async with asyncio.timeout(PATIENCE):
        while not await blocker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await asyncio.sleep(0.01)
    await database.crash()
    blocker.terminate()
    with pytest.raises(RegistryUnreachable):
        await publishing
    await database.start()
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(RegistryUnreachable):
                assert await registry.targets(SERVICE) == Targets()
                break
            await asyncio.sleep(0.05)
    assert await registry.audit(SERVICE) == ()
    assert (await until_it_counts(registry, publication)).revision == 1


async def test_a_crash_under_load_loses_and_doubles_nothing(
    database: Database, registry: PostgresRegistry
) -> None:
    done: dict[str, int] = {}
    half = asyncio.Event()

    async def publish_all(number: int) -> None:
        for turn in range(PUBLICATIONS):
            operation_id = f"R{number}/{turn}"
            publication = publication_of(SERVICE, operation_id=operation_id, expected_revision=None)
            done[operation_id] = (await until_it_counts(registry, publication)).revision
            if len(done) > PUBLISHERS * PUBLICATIONS // 2:
                half.set()

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number in range(PUBLISHERS):
            group.create_task(publish_all(number))
        await half.wait()
        await database.crash()
        await database.start()
    rows = await registry.audit(SERVICE)
    assert Counter(row.operation_id for row in rows) == Counter(done.keys())
    assert {row.operation_id: row.data["target"]["revision"] for row in rows} == done
    assert sorted(done.values()) == list(range(1, PUBLISHERS * PUBLICATIONS + 1))
    targets = await registry.targets(SERVICE)
    assert targets.canary is not None
    assert targets.canary.revision == len(done)
    assert isinstance(await verify_chain(registry.audit_page, SERVICE.environment), AuditHead)


Way = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AnswerEater:
    """Passes bytes to the database and back, but drops the connection instead of the answer to a COMMIT."""

    def __init__(self, *, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.eaten = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with closing_at_once(writer):
            upstream, downstream = await asyncio.open_connection("127.0.0.1", self._port)
            with closing_at_once(downstream):
                await self._pass_on((reader, downstream), (upstream, writer))

    async def _pass_on(self, up: Way, down: Way) -> None:
        committing = asyncio.Event()

        async def pump_up() -> None:
            source, sink = up
            while content := await source.read(65_536):
                if b"COMMIT" in content:
                    committing.set()
                sink.write(content)

        async def pump_down() -> None:
            source, sink = down
            while content := await source.read(65_536):
                if committing.is_set():
                    self.eaten += 1
                    return
                sink.write(content)

        pumps = [asyncio.create_task(pump_up()), asyncio.create_task(pump_down())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


@contextmanager
def closing_at_once(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.transport.abort()


async def test_a_caller_who_lost_the_answer_learns_it_by_repeating(
    database: Database, registry: PostgresRegistry
) -> None:
    publication = publication_of(SERVICE, operation_id="R1/1")
    eater = AnswerEater(port=database.address.port)
    port = await eater.start()
    dsn = database.address.application_dsn.replace(str(database.address.port), str(port))
    unlucky = await PostgresRegistry.connect(dsn=dsn, pool_size=1, timeout=5.0)
    with pytest.raises(RegistryUnreachable):
        await unlucky.publish(publication)
    assert eater.eaten == 1
    published = (await registry.targets(SERVICE)).canary
    assert published is not None
    assert await registry.publish(publication) == published
    assert len(await registry.audit(SERVICE)) == 1
    await unlucky.close()
    await eater.stop()
