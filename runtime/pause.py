"""Holding requests back for a moment in which no model may be used."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

from weightshift.errors import AnswerTooLate, QueueFull


class PausePhase(StrEnum):
    """What a swap in place cannot do without, in this order: what it takes beside them is its own doing."""

    DRAINING = "pause-draining"
    """Until the last request that uses the weights has been answered."""

    COPYING = "pause-copying"
    DRY_RUNNING = "pause-dry-running"


class PauseGate:
    """Requests wait here while it is paused, at most `limit` of them. Belongs to the event loop's thread.

    `paused_for` is called with the seconds of every pause.
    """

    def __init__(self, *, limit: int, paused_for: Callable[[float], None]) -> None:
        self._limit = limit
        self._paused_for = paused_for
        self._open = asyncio.Event()
        self._open.set()
        self._since: float | None = None
        self.waiting = 0
        self.last_seconds: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether requests wait now."""
        return not self._open.is_set()

    @property
    def lasts(self) -> float:
        """For how many seconds it has been paused; 0 while it is not. Safe from any thread."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    async def wait(self, until: float) -> None:
        """Return once nothing is paused, in the same turn of the event loop.

        Raises `QueueFull`, and `AnswerTooLate` at `until`, by the event loop's clock.
        """
        if not self.is_paused:
            return
        if self.waiting >= self._limit:
            raise QueueFull
        self.waiting += 1
        try:
            async with asyncio.timeout_at(until):
                while self.is_paused:
                    await self._open.wait()
        except TimeoutError:
            raise AnswerTooLate from None
        finally:
            self.waiting -= 1

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Hold requests back inside; whatever happens there, they go on afterwards."""
        started = self._since = time.monotonic()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()
            self._since = None
            self.last_seconds = time.monotonic() - started
            self._paused_for(self.last_seconds)
