"""One question to the database on behalf of everybody who asks it at the same moment."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Shared(Generic[Key, Value]):
    """Lets those who ask for the same key at the same moment share one read.

    An answer is never older than the question: a read that has begun already is not joined. Thousands
    of long polls that begin or end together so cost a read or two, not thousands.
    """

    def __init__(self, read: Callable[[Key], Awaitable[Value]]) -> None:
        self._read = read
        self._upcoming: dict[Key, asyncio.Task[Value]] = {}

    async def get(self, key: Key) -> Value:
        """Return what the read returns. Raises what it raises."""
        task = self._upcoming.get(key)
        if task is None:
            task = asyncio.create_task(self._start(key))
            # Also when everybody who asked has gone away: a failure nobody sees is no failure to report.
            task.add_done_callback(_take_note)
            self._upcoming[key] = task
        return await asyncio.shield(task)

    async def _start(self, key: Key) -> Value:
        # From here on the read may see less than a later question must be answered with.
        del self._upcoming[key]
        return await self._read(key)


def _take_note(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
