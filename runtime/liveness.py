"""`/livez` on a port, a thread and an event loop of its own: a busy loop is not taken for a dead process."""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

MOST_CONNECTIONS = 32
"""Open at once; of more the oldest are closed, so that whoever keeps some cannot keep a probe out."""

ANSWER_SECONDS = 2.0
"""How long a client may take from its connection to the end of its request's head."""

_MOST_HEAD_BYTES = 8 << 10
# Also how many are accepted in one turn of the loop: fewer than may be open, or a burst would close
# connections whose request has come but was not read yet.
_BACKLOG = 8
_CLOSE_SECONDS = 0.5


class LivenessServer:
    """Answers 200 while `is_live` says so, otherwise 503: then only a restart helps.

    Creating it takes the port, and raises `OSError` where somebody else has it. `is_live` is called on its
    thread.
    """

    def __init__(self, *, host: str, port: int, is_live: Callable[[], bool]) -> None:
        self._is_live = is_live
        self._socket = socket.create_server((host, port), backlog=_BACKLOG)
        self._loop = asyncio.new_event_loop()
        self._is_closing = asyncio.Event()
        # In the order in which they came.
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._loop.call_soon_threadsafe(self._is_closing.set)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._converse, sock=self._socket, backlog=_BACKLOG, limit=_MOST_HEAD_BYTES
        )
        async with server:
            await self._is_closing.wait()
            self._close_all_but(0)
        # Nothing else runs on this loop. A task that is cancelled instead is a failure to asyncio's streams.
        conversations = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*conversations, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        self._open[writer] = None
        self._close_all_but(MOST_CONNECTIONS)
        try:
            # Whoever goes away, or sends something else than a request in time, is nothing to report.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        if not head.startswith(b"GET /livez "):
            return _response(HTTPStatus.NOT_FOUND, b"")
        if self._is_live():
            return _response(HTTPStatus.OK, b'{"ok":true}')
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, b'{"ok":false}')

    def _close_all_but(self, most: int) -> None:
        while len(self._open) > most:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()


def _response(status: HTTPStatus, content: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content
