"""A stand-in for Prometheus: healthy counters of whatever service and revisions it is asked for."""

import asyncio
import json
import re
import sys
from urllib.parse import parse_qs, urlsplit

from _crowd_worker import SCRAPE_SECONDS

from runtime.rollout_metrics import latency_buckets

HOST = "127.0.0.1"
REQUESTS_PER_SECOND = {"canary": 15, "stable": 285}
INSTANCES = 2
_REVISIONS = re.compile(r'revision=~"(\d+)\|(\d+)"')
_EDGES = latency_buckets()
_LE = re.compile(r'le=~"([^"]+)"')
_RANGE = re.compile(r"\[(\d+)ms(?::(\d+)ms)?\]")


def answer(query: str, end: float) -> list[dict[str, object]]:
    """Return the range vector of one selector up to `end`: counters that grow evenly with time. Pure."""
    revisions, span = _REVISIONS.search(query), _RANGE.search(query)
    metric = query.partition("{")[0]
    if revisions is None or span is None:
        return []
    first, step = end - int(span[1]) / 1_000, int(span[2]) / 1_000 if span[2] else SCRAPE_SECONDS
    moments = [step * n for n in range(int(first // step) + 1, int(end // step) + 1)]
    found: list[dict[str, object]] = []
    for cohort, revision in zip(("canary", "stable"), revisions.groups(), strict=True):
        for number in range(INSTANCES):
            labels = {"cohort": cohort, "revision": revision, "instance": f"{cohort}-{number}"}
            rate = REQUESTS_PER_SECOND[cohort] / INSTANCES
            if metric == "weightshift_requests_total":
                series = {("code", "200"): 0.99, ("code", "500"): 0.01}
            elif metric == "weightshift_request_duration_seconds_bucket":
                series = {("le", f"{edge:g}"): 1 - 0.5 ** (edge / 0.02) for edge in _wanted(query)}
                series["le", "+Inf"] = 1.0
            else:
                continue
            for (name, value), share in series.items():
                samples = [[at, str(int(at % 1e7 * rate * share))] for at in moments]
                found.append({"metric": {**labels, name: value}, "values": samples})
    return found


def _wanted(query: str) -> list[float]:
    asked = _LE.search(query)
    if asked is None:
        return list(_EDGES)
    names = set(asked[1].split("|"))
    return [edge for edge in _EDGES if f"{edge:g}" in names]


class _Answering(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            asked = parse_qs(urlsplit(head.split(b" ")[1].decode()).query)
            result = answer(asked["query"][0], float(asked["time"][0]))
            body = json.dumps(
                {"status": "success", "data": {"resultType": "matrix", "result": result}}
            ).encode()
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                + body
            )


async def serve(port: int) -> None:
    """Answer on a loopback port until cancelled."""
    server = await asyncio.get_running_loop().create_server(_Answering, HOST, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
