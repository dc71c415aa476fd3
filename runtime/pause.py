"""Holding requests back for a moment in which no model may be used."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from weightshift.errors import QueueFull


class PauseGate:
    """Requests wait here while it is paused, at most `limit` of them. Belongs to the event loop's thread.

    `paused_for` is called with the seconds of every pause.
    """

    def __init__(self, *, limit: int, paused_for: Callable[[float], None]) -> None:
        self._limit = limit
        self._paused_for = paused_for
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0
        self.last_seconds: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether requests wait now."""
        return not self._open.is_set()

    async def wait(self) -> None:
        """Return once nothing is paused, in the same turn of the event loop. Raises `QueueFull`."""
        if not self.is_paused:
            return
        if self.waiting >= self._limit:
            raise QueueFull
        self.waiting += 1
        try:
            while self.is_paused:
                await self._open.wait()
        finally:
            self.waiting -= 1

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Hold requests back inside; whatever happens there, they go on afterwards."""
        started = time.monotonic()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()
            self.last_seconds = time.monotonic() - started
            self._paused_for(self.last_seconds)
