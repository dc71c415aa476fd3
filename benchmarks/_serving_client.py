"""The load of `serving.py`: one process on one core, which checks every answer.

Closed-loop clients find how much a server can answer; open-loop sending at a fixed rate, timed from the
intended send, finds how long an answer takes and what fails.
"""

import asyncio
import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from weightshift.local.traffic import Destination
from weightshift.local.traffic_check import Expectations

CORE = 1
CONNECTIONS = 16
MOST_IN_FLIGHT = 512
_SECONDS_FOR_AN_ANSWER = 10.0


class Wire:
    """How requests are spelled for one kind of server, and whether an answer is right."""

    def __init__(self, kind: str, path: str, expectations: Expectations) -> None:
        self._expectations = expectations
        self._is_open_inference = kind == "open-inference"
        self._contents = [
            _framed(path, _rows(body) if self._is_open_inference else body) for body in expectations.bodies
        ]

    def __len__(self) -> int:
        return len(self._contents)

    def request(self, position: int) -> bytes:
        """Return the bytes of a request."""
        return self._contents[position]

    def is_right(self, position: int, content: bytes) -> bool:
        """Whether an answer is that of one of the artifacts."""
        answer = _as_items(content) if self._is_open_inference else content
        return any(
            self._expectations.problem(artifact, position, answer) is None
            for artifact in self._expectations.answers
        )


@dataclass
class Seen:
    """Moments and latencies of good answers in seconds, and what was not one."""

    ended: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)

    def failed(self, reason: str) -> None:
        """Count a failure by its reason."""
        self.failures[reason] = self.failures.get(reason, 0) + 1

    def figures(self, started: float, seconds: float) -> dict[str, Any]:
        """Return what there is to say about a run that began at `started` and took so many seconds."""
        moments = [started, *sorted(self.ended), max(started + seconds, *self.ended, started)]
        gaps = [after - before for before, after in pairwise(moments)]
        quantiles = np.quantile(self.latencies, [0.5, 0.99]) if self.latencies else [0.0, 0.0]
        return {
            "per_second": len(self.latencies) / seconds,
            "p50_ms": 1000 * float(quantiles[0]),
            "p99_ms": 1000 * float(quantiles[1]),
            "failed": sum(self.failures.values()),
            "failures": self.failures,
            "longest_gap_ms": 1000 * max(gaps),
        }


class Connections:
    """Keep-alive connections to one server; one that failed is never used again."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body. Raises what sockets raise, and `ValueError`."""
        usable = self._idle.pop() if self._idle else None
        reader, writer = usable or await asyncio.open_connection(*self._address)
        try:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            content = await _read_body(reader, head)
        except BaseException:
            writer.close()
            raise
        if "connection: close" in head:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split(maxsplit=2)[1]), content


async def _read_body(reader: asyncio.StreamReader, head: str) -> bytes:
    if (length := re.search(r"content-length: *(\d+)", head)) is not None:
        return await reader.readexactly(int(length[1]))
    if "transfer-encoding: chunked" not in head:
        raise ValueError("an answer has no end")
    content = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        content += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return content


class Load:
    """Sends requests over kept connections."""

    def __init__(self, destination: Destination, wire: Wire) -> None:
        self.seen = Seen()
        self._connections = Connections(destination.host, destination.port)
        self._wire = wire
        self._position = 0

    async def closed(self, seconds: float) -> None:
        """Let every client send its next request as soon as it has an answer."""
        end = time.perf_counter() + seconds

        async def client() -> None:
            while (now := time.perf_counter()) < end:
                await self._send(now)

        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))

    async def open(self, rate: float, seconds: float) -> None:
        """Send at a fixed rate, whatever comes back."""
        started = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        for number in range(int(rate * seconds)):
            due = started + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if len(tasks) >= MOST_IN_FLIGHT:
                self.seen.failed("too many in flight")
                continue
            task = asyncio.create_task(self._send(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _send(self, due: float) -> None:
        position = self._position = (self._position + 1) % len(self._wire)
        try:
            async with asyncio.timeout(_SECONDS_FOR_AN_ANSWER):
                status, content = await self._connections.exchange(self._wire.request(position))
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            self.seen.failed(type(error).__name__)
            # A closed-loop client must not spin on a server that is away.
            await asyncio.sleep(0.01)
            return
        now = time.perf_counter()
        if status != 200:
            self.seen.failed(str(status))
        elif not self._wire.is_right(position, content):
            self.seen.failed("wrong answer")
        else:
            self.seen.ended.append(now)
            self.seen.latencies.append(now - due)


def _framed(path: str, content: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _rows(body: bytes) -> bytes:
    document = json.loads(body)
    rows = [candidate + document["context"] for candidate in document["candidates"]]
    flat = [value for row in rows for value in row]
    tensor = {"name": "rows", "shape": [len(rows), len(rows[0])], "datatype": "FP32", "data": flat}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode()


def _as_items(content: bytes) -> bytes:
    """Rank the scores as `/predict` does, so that one check is enough."""
    scores = json.loads(content)["outputs"][0]["data"]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[:3]
    return json.dumps({"items": [{"index": index, "score": scores[index]} for index in best]}).encode()


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Send as the arguments say; return the figures."""
    os.sched_setaffinity(0, {CORE})
    destination = Destination.parse(arguments["url"])
    wire = Wire(arguments["wire"], destination.path, Expectations.read(Path(arguments["expectations"])))
    load = Load(destination, wire)
    seconds, started = arguments["seconds"], time.perf_counter()
    if "rate" in arguments:
        uvloop.run(load.open(arguments["rate"], seconds))
    else:
        uvloop.run(load.closed(seconds))
    return load.seen.figures(started, seconds)


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
