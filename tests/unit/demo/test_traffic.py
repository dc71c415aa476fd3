import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from weightshift.errors import InvalidInput
from weightshift.local.traffic import Destination, Traffic
from weightshift.local.traffic_check import Expectations, LatencyHistogram, Tally

ANSWERS = {"v1": [[{"index": 2, "score": 1.5}]], "v2": [[{"index": 0, "score": -0.25}]]}


def reply(artifact: str = "v1", *, status: int = 200, answer: str | None = None, revision: int = 7) -> bytes:
    body = answer or json.dumps({"items": ANSWERS.get(artifact, [[]])[0]})
    return (
        f"HTTP/1.1 {status} Said\r\nX-Weightshift-Artifact: {artifact}\r\n"
        f"x-weightshift-revision: {revision}\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


class Server:
    """Answers every request with whatever `answer` says at that moment; None hangs up."""

    def __init__(self) -> None:
        self.answer: bytes | None = reply()
        self.silent = False
        self.users: set[bytes] = set()
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
                await reader.readexactly(int(lines[b"content-length"]))
                self.users.add(lines[b"x-user-id"])
                if self.answer is None:
                    break
                if not self.silent:
                    writer.write(self.answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    server = Server()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield server, f"http://127.0.0.1:{port}/predict"


@pytest.fixture
def expectations_file(tmp_path: Path) -> Path:
    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"bodies": [{"top": 1}], "answers": ANSWERS}))
    return path


async def send(url: str, expectations: Path, requests: int = 5, timeout: float = 5.0) -> Tally:
    traffic = Traffic(
        destination=Destination.parse(url),
        expectations=Expectations.read(expectations),
        rate=500,
        timeout=timeout,
    )
    traffic.released.add("v1")
    await traffic.run(requests / 500)
    return traffic.tally


async def test_right_answers_are_counted_per_artifact_and_revision(
    server: tuple[Server, str], expectations_file: Path
) -> None:
    tally = await send(server[1], expectations_file, requests=50)
    figures = tally.figures()
    assert (figures["requests"], figures["failed"], figures["misrouted"]) == (50, 0, 0)
    assert figures["artifacts"]["v1"]["requests"] == figures["revisions"]["7"]["requests"] == 50
    assert 0 < figures["artifacts"]["v1"]["p50_ms"] <= figures["artifacts"]["v1"]["p99_ms"]
    assert len(server[0].users) == 50
    assert server[0].connections < 50


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (reply("v1", answer='{"items":[{"index":2,"score":1.6}]}'), "v1 should answer 2:1.5000, got 2:1.6"),
        (reply("v1", answer='{"items":[{"index":1,"score":1.5}]}'), "v1 should answer"),
        (reply("v1", answer='{"items":[]}'), "v1 should answer"),
        (reply("v1", answer='{"items":7}'), "unreadable answer"),
        (reply("v1", answer="nonsense"), "unreadable answer"),
        (reply("v2"), "'v2', which is not released"),
        (reply(""), "'', which is not released"),
    ],
)
async def test_answers_of_another_model_are_misrouted(
    server: tuple[Server, str], expectations_file: Path, answer: bytes, detail: str
) -> None:
    server[0].answer = answer
    tally = await send(server[1], expectations_file)
    assert (tally.requests, tally.failed, tally.misrouted) == (5, 0, 5)
    assert detail in tally.failures[0]


async def test_a_released_artifact_may_answer(server: tuple[Server, str], expectations_file: Path) -> None:
    server[0].answer = reply("v2", revision=8)
    traffic = Traffic(
        destination=Destination.parse(server[1]), expectations=Expectations.read(expectations_file), rate=500
    )
    traffic.released |= {"v1", "v2"}
    await traffic.run(0.01)
    assert traffic.tally.revisions["8"].requests == 5


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (reply(status=503), "status 503"),
        (None, "IncompleteReadError"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "content-length"),
        (b"nonsense\r\n\r\n", "ValueError"),
    ],
)
async def test_requests_without_a_usable_answer_fail(
    server: tuple[Server, str], expectations_file: Path, answer: bytes | None, detail: str
) -> None:
    server[0].answer = answer
    tally = await send(server[1], expectations_file)
    assert (tally.requests, tally.failed, tally.misrouted) == (5, 5, 0)
    assert detail in tally.failures[0]


async def test_silence_fails_at_the_deadline(server: tuple[Server, str], expectations_file: Path) -> None:
    server[0].silent = True
    tally = await send(server[1], expectations_file, timeout=0.05)
    assert (tally.requests, tally.failed) == (5, 5)
    assert "no answer within 0.05 s" in tally.failures[0]


async def test_requests_beyond_the_limit_in_flight_fail_at_once(
    server: tuple[Server, str], expectations_file: Path
) -> None:
    server[0].silent = True
    traffic = Traffic(
        destination=Destination.parse(server[1]),
        expectations=Expectations.read(expectations_file),
        rate=500,
        timeout=0.2,
        in_flight_limit=2,
    )
    await traffic.run(0.01)
    assert traffic.tally.failed == 5
    assert "2 requests were still in flight" in traffic.tally.failures[0]


async def test_only_the_first_failures_are_kept(server: tuple[Server, str], expectations_file: Path) -> None:
    server[0].answer = reply(status=500)
    tally = await send(server[1], expectations_file, requests=30)
    assert tally.failed == 30
    assert len(tally.failures) == 10


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1:80/predict",
        "http://localhost:80/",
        "https://127.0.0.1:80/",
        "http://127.0.0.1/",
        "http://127.0.0.1:x/",
    ],
)
def test_only_loopback_addresses_are_targets(url: str) -> None:
    with pytest.raises(InvalidInput, match="of the form http"):
        Destination.parse(url)


def test_quantiles_are_within_a_bucket_of_the_truth() -> None:
    histogram = LatencyHistogram()
    assert histogram.quantile(0.5) is None
    for milliseconds in range(1, 1001):
        histogram.add(milliseconds / 1000)
    assert histogram.quantile(0.5) == pytest.approx(0.5, rel=0.06)
    assert histogram.quantile(0.99) == pytest.approx(0.99, rel=0.06)


async def test_the_process_reports_and_ends_on_request(
    server: tuple[Server, str], expectations_file: Path
) -> None:
    process = await start_process(server[1], expectations_file)
    assert process.stdin is not None
    process.stdin.write(b'{"released": "v1"}\n')
    figures = await figures_until(process, lambda figures: figures["artifacts"].get("v1") is not None)
    assert not figures["final"]
    process.send_signal(signal.SIGTERM)
    figures = await figures_until(process, lambda figures: figures["final"])
    assert figures["failed"] == 0
    assert await process.wait() == 0


async def test_the_process_ends_with_its_input(server: tuple[Server, str], expectations_file: Path) -> None:
    process = await start_process(server[1], expectations_file)
    assert process.stdin is not None
    process.stdin.close()
    assert (await figures_until(process, lambda figures: figures["final"]))["failed"] == 0
    assert await process.wait() == 0


async def start_process(url: str, expectations: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "weightshift.local.traffic",
        *("--url", url, "--expectations", str(expectations), "--seconds", "30"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def figures_until(
    process: asyncio.subprocess.Process, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        while line := await process.stdout.readline():
            figures: dict[str, Any] = json.loads(line)
            if condition(figures):
                return figures
    raise AssertionError("the process ended without the expected figures")
