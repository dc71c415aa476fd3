"""Heads of requests that do not end, and connections that nobody uses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from runtime import http_protocol
from runtime.responses import read_body, send_json
from runtime.server import create_server

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
GOOD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
DEADLINE = 10.0
MOST_CONNECTIONS = 4


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(scope, receive, limit=1 << 20, deadline=DEADLINE)
    await send_json(send, 200, {})


@pytest.fixture
async def connect(world: Any) -> AsyncIterator[Connect]:
    server: uvicorn.Server = create_server(app, most_connections=MOST_CONNECTIONS)
    server.config.port = 0
    serving = asyncio.create_task(server.serve())
    await world.until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield lambda: asyncio.open_connection("127.0.0.1", port)
    server.should_exit = True
    await serving


async def read(reader: asyncio.StreamReader) -> bytes:
    """Read until the connection is closed."""
    return await asyncio.wait_for(reader.read(), DEADLINE)


async def send_headers(writer: asyncio.StreamWriter, size: int) -> None:
    for _ in range(size >> 16):
        writer.write(b"X: " + b"x" * (1 << 16) + b"\r\n")
        await asyncio.wait_for(writer.drain(), DEADLINE)


async def test_a_head_without_an_end_is_refused_before_it_takes_much_memory(connect: Connect) -> None:
    _, writer = await connect()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    with pytest.raises(ConnectionError):
        await send_headers(writer, 64 << 20)
    writer.close()


async def test_a_head_that_comes_slowly_is_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.05)
    reader, writer = await connect()
    writer.write(b"GET / HTTP/1.1\r\nHo")
    assert (await read(reader)).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_requests_in_pieces_and_idle_connections_are_served(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    loop = asyncio.get_running_loop()
    reader, writer = await connect()
    started = loop.time()
    for _ in range(3):
        for byte in (GOOD[:20], GOOD[20:]):
            writer.write(byte)
            await writer.drain()
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"{}"), DEADLINE)
    # The one that waits for its second request is left alone for longer than a head may take.
    await asyncio.sleep(max(0.0, started + 0.4 - loop.time()))
    writer.write(GOOD)
    assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"{}"), DEADLINE)
    writer.close()


async def test_a_long_body_is_no_head(connect: Connect) -> None:
    reader, writer = await connect()
    body = b" " * (1 << 19)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    writer.write(request + request)
    for _ in range(2):
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"{}"), DEADLINE)
    writer.close()


async def ask(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(GOOD)
    assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"{}"), DEADLINE)
    writer.close()


async def test_of_connections_that_wait_the_oldest_are_closed(connect: Connect) -> None:
    used, used_writer = await connect()
    idle = [await connect() for _ in range(MOST_CONNECTIONS - 1)]
    used_writer.write(GOOD)
    assert b"200 OK" in await asyncio.wait_for(used.readuntil(b"{}"), DEADLINE)
    # Each probe is answered, and takes the place of whoever was quiet for longest.
    await ask(connect)
    assert await read(idle[0][0]) == b""
    crowd = [await connect() for _ in range(3 * MOST_CONNECTIONS)]
    await ask(connect)
    assert await read(idle[1][0]) == await read(idle[2][0]) == await read(used) == b""
    assert await read(crowd[0][0]) == b""
    reader, writer = crowd[-1]
    writer.write(GOOD)
    assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"{}"), DEADLINE)
    for _, each in (*idle, *crowd):
        each.close()
    used_writer.close()


async def test_a_connection_with_a_request_in_progress_is_kept(connect: Connect) -> None:
    busy = [await connect() for _ in range(MOST_CONNECTIONS)]
    for reader, writer in busy:
        writer.write(GOOD[:-6] + b"\r\nExpect: 100-continue\r\n\r\n{")
        # It has read the head.
        assert b" 100 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
    reader, writer = await connect()
    assert await read(reader) == b""
    writer.close()
    for reader, writer in busy:
        writer.write(GOOD[-1:])
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"{}"), DEADLINE)
        writer.close()
