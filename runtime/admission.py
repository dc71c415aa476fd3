"""Which requests may still begin, and whether all that did have ended."""

import asyncio

from weightshift.errors import NotServing


class Admission:
    """Counts requests in progress. `is_draining` only says not ready; closing refuses new ones.

    Neither is ever undone. Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self._is_closed = False
        self._hurried = asyncio.Event()
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress now; any thread may ask."""
        return self._active > 0

    def enter(self) -> None:
        """Begin a request. Raises `NotServing` once closed."""
        if self._is_closed:
            raise NotServing("The instance is shutting down; send the request again.")
        self._active += 1
        self._idle.clear()

    def leave(self) -> None:
        """End a request."""
        self._active -= 1
        if self._active == 0:
            self._idle.set()

    async def drain(self, *, propagation_seconds: float, deadline: float) -> bool:
        """Say not ready, keep admitting until that is known everywhere, then refuse and wait.

        Returns whether every request ended within `deadline` seconds of the refusal. `hurry` cuts it short.
        """
        self.is_draining = True
        await self._wait(self._hurried, propagation_seconds)
        self._is_closed = True
        await self._wait(self._idle, deadline)
        return self._active == 0

    def hurry(self) -> None:
        """Refuse new requests now and wait for none, in a drain that has begun or will."""
        self._hurried.set()

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait until the event, at most some seconds, and no longer once in a hurry."""
        waiters = [asyncio.create_task(one.wait()) for one in (event, self._hurried)]
        await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiters:
            waiter.cancel()
