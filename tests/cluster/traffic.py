"""Checked requests from a pod inside the mesh: `python - URL EXPECTATIONS SECONDS RATE < traffic.py`.

Open loop: a request is sent when it is due, whatever became of those before it. The last line of output is
one JSON object: `requests`, `failed` (the first few problems), `artifacts` (answers by artifact).
"""

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from weightshift.local.traffic_check import Expectations

SHOWN = 10


@dataclass
class Figures:
    """What became of the requests so far."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    artifacts: Counter[str] = field(default_factory=Counter)


async def ask(
    client: httpx.AsyncClient, url: str, expected: Expectations, position: int, seen: Figures
) -> None:
    """Send one request and compare its answer with what the artifact that gave it should say."""
    seen.requests += 1
    try:
        answer = await client.post(url, content=expected.bodies[position])
    except httpx.HTTPError as error:
        seen.failed.append(f"{type(error).__name__}: {error}")
        return
    artifact = answer.headers.get("x-weightshift-artifact", "")
    problem = None if answer.is_success else f"status {answer.status_code}: {answer.text[:200]}"
    problem = problem or expected.problem(artifact, position, answer.content)
    if problem:
        seen.failed.append(problem)
    else:
        seen.artifacts[artifact] += 1


async def main(url: str, expectations: Path, seconds: float, rate: float) -> Figures:
    """Send `rate` requests a second for so many seconds, and wait for the last answer."""
    expected, seen = Expectations.read(expectations), Figures()
    started, tasks = time.monotonic(), []
    async with httpx.AsyncClient(timeout=20.0) as client:
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
            one = ask(client, url, expected, number % len(expected.bodies), seen)
            tasks.append(asyncio.create_task(one))
        await asyncio.gather(*tasks)
    return seen


if __name__ == "__main__":
    figures = asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
    content = {
        "requests": figures.requests,
        "failed": figures.failed[:SHOWN],
        "artifacts": dict(figures.artifacts),
    }
    sys.stdout.write(json.dumps(content) + "\n")
