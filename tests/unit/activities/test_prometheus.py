"""What a metrics store answers that is no answer."""

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
