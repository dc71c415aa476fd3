"""A metrics store that answers something else, or nothing."""

import asyncio

import pytest

from activities.prometheus import PrometheusReader
from weightshift.errors import MetricsUnreachable
from weightshift.settings import MetricsSettings


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("200 OK", b"<html>a proxy's login page</html>"),
        ("503 Service Unavailable", b"{}"),
        ("200 OK", b"[1]"),
    ],
    ids=["no JSON", "an error", "not what Prometheus answers"],
)
async def test_what_is_no_answer_of_prometheus_is_unreachable(status: str, body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader = PrometheusReader(settings=MetricsSettings(prometheus_url=f"http://127.0.0.1:{port}"))
        with pytest.raises(MetricsUnreachable, match="Prometheus did not answer"):
            await reader.select("up[1s]", end=1.0)


async def test_a_store_that_hangs_keeps_nothing_else_from_its_threads() -> None:
    asked = asyncio.Semaphore(0)
    release = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.release()
        await release.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader = PrometheusReader(settings=MetricsSettings(prometheus_url=f"http://127.0.0.1:{port}"))
        queries = [asyncio.create_task(reader.select("up[1s]", end=1.0)) for _ in range(100)]
        async with asyncio.timeout(10):
            for _ in range(10):
                await asked.acquire()
            assert await asyncio.to_thread(lambda: "an address")
        release.set()
        answers = await asyncio.gather(*queries, return_exceptions=True)
    assert all(isinstance(answer, MetricsUnreachable) for answer in answers)
