"""The one LISTEN connection of a service process, which proves itself alive and mistrusts silence."""

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from pydantic import ValidationError

from weightshift.contracts.identity import Service
from weightshift.registry.postgres.database import UNANSWERED, LoneConnection
from weightshift.registry.postgres.targets import TARGET_CHANNEL
from weightshift.registry.sql import QUERIES
from weightshift.registry.watch import TargetBell

HEARTBEAT_CHANNEL = "weightshift_heartbeat"
APPLICATION_NAME = "weightshift-listener"
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

_logger = logging.getLogger(__name__)


class TargetListener:
    """Rings a bell for every published target, and for everything after any silence.

    Not through a pooler: LISTEN belongs to one connection, on the primary. `heartbeat` and `timeout`
    are seconds. A half-open connection is found because the listener's NOTIFY to itself stays away.
    """

    def __init__(self, *, dsn: str, bell: TargetBell, heartbeat: float, timeout: float) -> None:
        self._dsn = dsn
        self.bell = bell
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._own_name = secrets.token_hex(16)
        self._echoed = asyncio.Event()
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled, reconnecting for ever; waiters poll in the meantime."""
        pause = SHORTEST_PAUSE
        while True:
            try:
                async with self._connection() as connection:
                    pause = SHORTEST_PAUSE
                    await self._stay(connection)
            except (*UNANSWERED, asyncpg.PostgresError) as error:
                _logger.warning("The LISTEN connection failed (%s); connecting again.", type(error).__name__)
            finally:
                self.listening.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects only
            pause = min(pause * 2, LONGEST_PAUSE)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[LoneConnection]:
        connection = await asyncpg.connect(
            self._dsn,
            timeout=self._timeout,
            command_timeout=self._timeout,
            server_settings={"application_name": APPLICATION_NAME},
        )
        try:
            yield connection
        finally:
            # Whether the server would still say goodbye is unknown; nobody waits to learn it.
            connection.terminate()

    async def _stay(self, connection: LoneConnection) -> None:
        await connection.add_listener(TARGET_CHANNEL, self._on_target)
        await connection.add_listener(HEARTBEAT_CHANNEL, self._on_heartbeat)
        while True:
            self._echoed.clear()
            await connection.execute(QUERIES["notify"], HEARTBEAT_CHANNEL, self._own_name)
            async with asyncio.timeout(self._timeout):
                await self._echoed.wait()
            if not self.listening.is_set():
                self.listening.set()
                self.bell.ring_all()
            await asyncio.sleep(self._heartbeat)

    def _on_target(
        self, _: "LoneConnection | PoolConnectionProxy", __: int, ___: str, payload: object
    ) -> None:
        try:
            self.bell.ring(Service.model_validate_json(str(payload)))
        except ValidationError:
            # Anybody who can log in can notify; an unreadable payload still means that something changed.
            self.bell.ring_all()

    def _on_heartbeat(
        self, _: "LoneConnection | PoolConnectionProxy", __: int, ___: str, payload: object
    ) -> None:
        if payload == self._own_name:
            self._echoed.set()
