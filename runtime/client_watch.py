"""Giving up a request whose client has gone, before it costs any model work."""

import asyncio
from types import TracebackType

from starlette.types import Receive

from runtime.responses import ClientGone

_QUICK_SECONDS = 0.05
"""Most answers come sooner, and watching for a disconnect costs more than they do."""


class ClientWatch:
    """In its `with` block an answer is awaited; once the client is gone it is cancelled.

    Then the block raises `ClientGone`. Belongs to the event loop's thread.
    """

    def __init__(self, answer: "asyncio.Future[object]", receive: Receive) -> None:
        self._answer = answer
        self._receive = receive
        self._is_gone = False
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_QUICK_SECONDS, self._begin)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._is_gone and isinstance(error, asyncio.CancelledError):
            raise ClientGone from None

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # Not if the answer came first: it was awaited, and this is only the end of the connection.
        if not self._answer.done():
            self._is_gone = True
            self._answer.cancel()
