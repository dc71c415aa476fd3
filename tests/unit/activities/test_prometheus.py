"""A metrics store that answers something else, or nothing."""

import asyncio
from typing import cast

import pytest

from activities.prometheus import PrometheusReader
from weightshift.errors import MetricsUnreachable, QueryRefused
from weightshift.settings import MetricsSettings


async def answered(status: str, body: bytes) -> Exception:
    """What a query raises that is answered with this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader = PrometheusReader(settings=MetricsSettings(prometheus_url=f"http://127.0.0.1:{port}"))
        with pytest.raises((MetricsUnreachable, QueryRefused)) as raised:
            await reader.select("up[1s]", end=1.0)
    return raised.value


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("200 OK", b"<html>a proxy's login page</html>", ": InvalidJSONError"),
        ("503 Service Unavailable", b"{}", ": HTTP 503"),
        (
            "503 Service Unavailable",
            b'{"status":"error","error":"query timed out"}',
            ": HTTP 503: query time",
        ),
        ("400 Bad Request", b"<html>a proxy's</html>", ": HTTP 400"),
        ("401 Unauthorized", b'{"error":"who are you?"}', ": HTTP 401: who are you"),
        ("422 Unprocessable Entity", b'{"error":"too many samples"}', ": HTTP 422: too many samples"),
        ("200 OK", b"[1]", ": TypeError"),
    ],
)
async def test_what_is_no_answer_of_prometheus_is_unreachable(status: str, body: bytes, said: str) -> None:
    error = await answered(status, body)
    assert isinstance(error, MetricsUnreachable)
    assert f"Prometheus did not answer{said}" in str(error)


async def test_a_query_that_prometheus_refuses_is_refused_in_its_words() -> None:
    body = b'{"status":"error","errorType":"bad_data","error":"1:9: parse\\nerror"}'
    error = await answered("400 Bad Request", body)
    assert isinstance(error, QueryRefused)
    assert str(error) == "Prometheus refuses the query: 1:9: parse error"


async def test_what_prometheus_says_is_bounded() -> None:
    error = await answered("400 Bad Request", b'{"error":"%s"}' % (b"x" * 100_000))
    assert 300 < len(str(error)) < 400


async def test_a_store_that_hangs_keeps_nothing_else_from_its_threads() -> None:
    asked = asyncio.Semaphore(0)
    release = asyncio.Event()
    hanging: list[asyncio.Task[None]] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.append(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            await reader.readuntil(b"\r\n\r\n")
            asked.release()
            await release.wait()
        finally:
            writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = MetricsSettings(prometheus_url=f"http://127.0.0.1:{port}", timeout=1.0)
        reader = PrometheusReader(settings=settings)
        queries = [asyncio.create_task(reader.select("up[1s]", end=1.0)) for _ in range(100)]
        async with asyncio.timeout(10):
            for _ in range(10):
                await asked.acquire()
            assert await asyncio.to_thread(lambda: "an address")
            # Nor does one query wait for the time-outs of all that came before it.
            answers = await asyncio.gather(*queries, return_exceptions=True)
        release.set()
        await asyncio.gather(*hanging, return_exceptions=True)
    assert all(isinstance(answer, MetricsUnreachable) for answer in answers)
