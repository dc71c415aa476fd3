"""A bounded pool of connections that either answers in time or says that it does not."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Self, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from weightshift.errors import RegistryUnreachable, SchemaMismatch
from weightshift.registry.sql import QUERIES, migrations

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection[asyncpg.Record]"
LoneConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

UNANSWERED = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    # A connection that was cut while idle, noticed by the first query on it.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
"""What asyncpg raises when the database is away, overloaded, switching over or not to be logged in to."""


@contextmanager
def answering() -> Iterator[None]:
    """Turn every failure to answer into `RegistryUnreachable`; the cause stays chained for the log."""
    try:
        yield
    except UNANSWERED as error:
        raise RegistryUnreachable("The registry's database does not answer; try again.") from error


@asynccontextmanager
async def lone_connection(*, dsn: str, seconds: float) -> AsyncIterator[LoneConnection]:
    """Open one connection without a pool; `seconds` bounds each step. Raises `RegistryUnreachable`."""
    with answering():
        connection = await asyncpg.connect(dsn, timeout=seconds, command_timeout=seconds)
        try:
            yield connection
        finally:
            await connection.close(timeout=seconds)


class Database:
    """A pool whose every use is bounded by `timeout` seconds, waiting for a connection included."""

    def __init__(self, *, pool: Pool, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout

    @classmethod
    async def open(cls, *, dsn: str, pool_size: int, timeout: float) -> Self:
        """Connect and check the schema. Raises `RegistryUnreachable`, `SchemaMismatch`."""
        milliseconds = int(timeout * 1000)
        with answering():
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=pool_size,
                timeout=timeout,
                command_timeout=timeout,
                server_settings={
                    "application_name": "weightshift-registry",
                    "statement_timeout": str(milliseconds),
                    # A worker frozen inside a transaction must not hold its locks for long.
                    "idle_in_transaction_session_timeout": str(milliseconds // 2),
                },
            )
        database = cls(pool=pool, timeout=timeout)
        try:
            await database.check_schema()
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Close every connection, by force when that takes too long."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection. Raises `RegistryUnreachable`."""
        with answering():
            async with asyncio.timeout(self._timeout), self._pool.acquire() as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Lend a connection inside a transaction. Raises `RegistryUnreachable`."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def check_schema(self) -> None:
        """Compare the database's schema version with this build's. Raises `SchemaMismatch`."""
        try:
            async with self.connection() as connection:
                records = await connection.fetch(QUERIES["select_applied_migrations"])
        except asyncpg.UndefinedTableError:
            records = []
        refuse_mismatch({record["version"] for record in records})


def refuse_mismatch(applied: Collection[int]) -> None:
    """Raise `SchemaMismatch` unless a database with these migrations has exactly this build's schema."""
    refuse_newer(applied)
    if missing := [migration.version for migration in migrations() if migration.version not in applied]:
        raise SchemaMismatch(
            f"The registry's database is at schema version {max(applied, default=0)} and lacks migrations "
            f"{', '.join(map(str, missing))}; run `weightshift registry migrate`."
        )


def refuse_newer(applied: Collection[int]) -> None:
    """Raise `SchemaMismatch` for a database that a newer build has migrated."""
    known = {migration.version for migration in migrations()}
    if unknown := [version for version in applied if version not in known]:
        raise SchemaMismatch(
            f"The registry's database is at schema version {max(unknown)}, this build knows only "
            f"{max(known)}; use a build at least as new as the database."
        )
