"""A checked, open-loop load generator: `python -m weightshift.local.traffic`.

It is a process of its own, so that no other work delays a request. It writes one JSON line of figures
every half second and a last one with `"final": true`. It reads `{"released": ARTIFACT_ID}` lines from
standard input: an answer by any other artifact counts as misrouted. It ends at SIGTERM, at the end of
its input, and after `--seconds`.
"""

import argparse
import asyncio
import ipaddress
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from weightshift.errors import InvalidInput
from weightshift.local.traffic_check import Expectations, Tally

REPORT_SECONDS = 0.5
_LARGEST_ANSWER = 1 << 20
_LONGEST_COMMAND = 1 << 16


class Response(NamedTuple):
    """One HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Destination:
    """Where requests go: a loopback address only, because this tool knows no mercy."""

    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> "Destination":
        """Read `http://127.0.0.1:PORT/PATH`. Raises `InvalidInput`."""
        parts = urlsplit(url)
        try:
            loopback = ipaddress.ip_address(parts.hostname or "").is_loopback
            port = parts.port
        except ValueError:
            loopback, port = False, None
        if parts.scheme != "http" or not loopback or port is None:
            raise InvalidInput(f"url: {url!r} is not of the form http://127.0.0.1:PORT/PATH.")
        return cls(host=str(parts.hostname), port=port, path=parts.path or "/")


class Connections:
    """Keep-alive connections to one destination; a connection that failed is never used again."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def exchange(self, request: bytes) -> Response:
        """Send one request and read its answer. Raises what sockets raise, and `ValueError`."""
        reader, writer = self._reusable() or await asyncio.open_connection(
            self.destination.host, self.destination.port, limit=_LARGEST_ANSWER
        )
        try:
            writer.write(request)
            response = await _read_response(reader)
        except BaseException:
            writer.close()
            raise
        if response.headers.get("connection") == "close":
            writer.close()
        else:
            self.idle.append((reader, writer))
        return response

    def _reusable(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    async def close(self) -> None:
        """Close every idle connection."""
        for _, writer in self.idle:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in self.idle), return_exceptions=True)
        self.idle.clear()


async def _read_response(reader: asyncio.StreamReader) -> Response:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].removeprefix("HTTP/1.1 ")[:3])
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if not 0 <= length <= _LARGEST_ANSWER:
        raise ValueError(f"status {status} with an unusable content-length")
    return Response(status, headers, await reader.readexactly(length))


class Traffic:
    """Sends requests at a fixed rate, whatever comes back, and checks every answer."""

    def __init__(
        self,
        *,
        destination: Destination,
        expectations: Expectations,
        rate: float = 120.0,
        users: int = 200,
        timeout: float = 5.0,
        in_flight_limit: int = 256,
    ) -> None:
        self.rate = rate
        self.users = users
        self.timeout = timeout
        self.in_flight_limit = in_flight_limit
        self.expectations = expectations
        self.connections = Connections(destination)
        self.tally = Tally()
        self.released: set[str] = set()
        self.stopping = False
        self._in_flight: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Send nothing more; requests in flight are still awaited."""
        self.stopping = True

    async def run(self, seconds: float) -> None:
        """Send requests until `stop` or for `seconds`, then wait for the answers still open."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        for number in range(int(seconds * self.rate)):
            due = started + number / self.rate
            if (delay := due - loop.time()) > 0:
                await asyncio.sleep(delay)
            if self.stopping:
                break
            self._dispatch(number, due)
        await asyncio.gather(*self._in_flight)
        await self.connections.close()

    def _dispatch(self, number: int, due: float) -> None:
        if len(self._in_flight) >= self.in_flight_limit:
            self.tally.fail(f"request {number}: {self.in_flight_limit} requests were still in flight")
            return
        task = asyncio.create_task(self._send(number, due))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def _send(self, number: int, due: float) -> None:
        position = number % len(self.expectations.bodies)
        try:
            async with asyncio.timeout(self.timeout):
                response = await self.connections.exchange(self._request(number, position))
        except TimeoutError:
            self.tally.fail(f"request {number}: no answer within {self.timeout:g} s")
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            self.tally.fail(f"request {number}: {type(error).__name__}: {error}")
        else:
            # From the moment it was due: a late start must not make the answer look quick.
            self._judge(number, position, response, asyncio.get_running_loop().time() - due)

    def _request(self, number: int, position: int) -> bytes:
        destination, body = self.connections.destination, self.expectations.bodies[position]
        head = (
            f"POST {destination.path} HTTP/1.1\r\nhost: {destination.host}:{destination.port}\r\n"
            # 7919 is prime: users do not walk in step with the bodies.
            f"x-user-id: user-{number * 7919 % self.users}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _judge(self, number: int, position: int, response: Response, seconds: float) -> None:
        if response.status != 200:
            self.tally.fail(f"request {number}: status {response.status}: {response.body[:100]!r}")
            return
        artifact = response.headers.get("x-weightshift-artifact", "")
        if artifact not in self.released:
            self.tally.misroute(f"request {number}: answered by {artifact!r}, which is not released")
        elif problem := self.expectations.problem(artifact, position, response.body):
            self.tally.misroute(f"request {number}: {problem}")
        else:
            revision = response.headers.get("x-weightshift-revision", "")
            self.tally.good(artifact, revision, seconds)


async def _follow_commands(traffic: Traffic) -> None:
    """Apply `{"released": ARTIFACT_ID}` lines; whoever wrote them is gone when they end."""
    reader = asyncio.StreamReader(limit=_LONGEST_COMMAND)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while line := await reader.readline():
            traffic.released.add(json.loads(line)["released"])
    finally:
        traffic.stop()


async def _report(traffic: Traffic) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        _write_figures(traffic, final=False)


def _write_figures(traffic: Traffic, *, final: bool) -> None:
    sys.stdout.write(json.dumps(traffic.tally.figures() | {"final": final}) + "\n")
    sys.stdout.flush()


async def _run(traffic: Traffic, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, traffic.stop)
    helpers = [asyncio.create_task(_report(traffic)), asyncio.create_task(_follow_commands(traffic))]
    try:
        await traffic.run(seconds)
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    _write_figures(traffic, final=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m weightshift.local.traffic", description=__doc__)
    parser.add_argument("--url", required=True, help="http://127.0.0.1:PORT/PATH")
    parser.add_argument("--expectations", required=True, type=Path, help="JSON file of bodies and answers")
    parser.add_argument("--rate", type=float, default=120.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=600.0, help="longest run")
    options = parser.parse_args(arguments)
    try:
        destination = Destination.parse(options.url)
    except InvalidInput as error:
        parser.error(str(error))
    expectations = Expectations.read(options.expectations)
    traffic = Traffic(destination=destination, expectations=expectations, rate=options.rate)
    asyncio.run(_run(traffic, options.seconds))


if __name__ == "__main__":
    main()
