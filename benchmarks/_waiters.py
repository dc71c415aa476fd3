"""Many connections that long-poll one path, in a process of their own."""

import asyncio
import multiprocessing
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

PATIENCE = 60.0
CONNECTING_AT_ONCE = 100
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Crowd:
    """The other end of the process with the connections."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ask(self, known_revision: int) -> None:
        """Let every connection ask for what is newer."""
        self._pipe.send(known_revision)

    def arrivals(self) -> list[float]:
        """Return when (`time.monotonic`) each connection had its whole answer."""
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError("the waiters did not all get an answer")
        moments: list[float] = self._pipe.recv()
        return moments


@asynccontextmanager
async def waiting(port: int, path: str, *, token: str, count: int) -> AsyncIterator[Crowd]:
    """Open `count` connections in another process for the length of a `with` block."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_run, args=(port, path, token, count, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Crowd(mine)
    finally:
        mine.send(None)
        await asyncio.to_thread(process.join, PATIENCE)


class _Waiter(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""
        self._answered: asyncio.Future[float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[float]":
        """Send a request; the future holds when its whole answer was there."""
        self._received = b""
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answered

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if found and length and len(body) >= int(length[1]) and self._answered:
            assert head.startswith(b"HTTP/1.1 200")
            self._answered.set_result(time.monotonic())


def _run(port: int, path: str, token: str, count: int, pipe: Connection) -> None:
    asyncio.run(_wait_and_tell(port, path, token, count, pipe))


async def _wait_and_tell(port: int, path: str, token: str, count: int, pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    waiters: list[_Waiter] = []
    while len(waiters) < count:
        fewer = min(CONNECTING_AT_ONCE, count - len(waiters))
        opened = [loop.create_connection(_Waiter, "127.0.0.1", port) for _ in range(fewer)]
        waiters += [protocol for _, protocol in await asyncio.gather(*opened)]
    while (known := await asyncio.to_thread(pipe.recv)) is not None:
        request = (
            f"GET {path}?wait=30 HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
            f'if-none-match: "{known}"\r\n\r\n'
        ).encode()
        pipe.send(await asyncio.gather(*(waiter.ask(request) for waiter in waiters)))
