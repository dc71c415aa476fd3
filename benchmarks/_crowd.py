"""Many releases in flight and judging on one worker, and how long a rollback takes among them."""

import asyncio
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from _crowd_worker import crowd
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from weightshift.client import ReleaseClient
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import ReleaseRequest, RollbackRequest
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, running
from weightshift.local.temporal import temporal_server

HELD = Plan.model_validate({"stages": [5, 100], "window": "6h", "max_window": "12h", "interval": "10s"})
"""Judged at 5 % by the default gates until it is rolled back."""

_WORKER = "crowd-worker"
_JUDGED = re.compile(r"^judged ", re.MULTILINE)
_SHOWN = re.compile(r"crowd-\d+ [\d.]+")
_AT_ONCE = 20
_PATIENCE = 900.0
_JUDGING_SECONDS = 25.0


async def measure_crowd(directory: Path, *, releases: int, rollbacks: int) -> dict[str, Any]:
    """Start releases, let all of them be judged, and roll some of them back, one after the other.

    A rollback lasts from the signal until the mesh was read back.
    """
    async with (
        temporal_server(directory) as temporal,
        _worker(directory, temporal.target, releases) as worker,
    ):
        connected = await Client.connect(temporal.target, data_converter=pydantic_data_converter)
        client = ReleaseClient(client=connected)
        services = crowd(releases)
        started = time.perf_counter()
        await _in_groups(client.start(_request(number)) for number in range(releases))
        log = directory / "logs" / f"{_WORKER}.log"
        await _until(lambda: len(_JUDGED.findall(log.read_text(encoding="utf-8"))) >= releases)
        ready = time.perf_counter() - started
        await asyncio.sleep(_JUDGING_SECONDS)
        before = _cpu_seconds(worker)
        began, signalled = time.monotonic(), {}
        for service in services[:: max(1, releases // rollbacks)][:rollbacks]:
            signalled[service.environment] = time.monotonic()
            await client.rollback(service, RollbackRequest(operator="benchmark"))
        busy = (_cpu_seconds(worker) - before) / (time.monotonic() - began)
        shown = _shown(log)
        taken = [(shown[name] - moment) * 1_000 for name, moment in signalled.items()]
        return {
            "crowd_releases": releases,
            "crowd_seconds_until_all_are_judged": round(ready, 1),
            "crowd_rollback_ms_p50": round(statistics.median(taken), 1),
            "crowd_rollback_ms_p99": round(sorted(taken)[int(0.99 * (len(taken) - 1))], 1),
            "crowd_rollbacks": len(taken),
            "crowd_worker_mib": round(_resident_mib(worker), 1),
            "crowd_worker_busy_cores": round(busy, 2),
        }


def _request(number: int) -> ReleaseRequest:
    service = crowd(number + 1)[number]
    return ReleaseRequest(
        release_id=f"crowd-{number}", service=service, artifact_id="v42", plan=HELD, operator="benchmark"
    )


async def _in_groups(calls: Iterable[Awaitable[object]]) -> None:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Awaitable[object]) -> None:
        async with slots:
            await call

    await asyncio.gather(*(one(call) for call in calls))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():
            await asyncio.sleep(0.5)


@asynccontextmanager
async def _worker(directory: Path, temporal: str, releases: int) -> AsyncIterator[int]:
    """Run the worker and the Prometheus that it asks; yields the worker's process id."""
    (port,) = free_ports(1)
    here = Path(__file__).parent

    async def at_once() -> bool:
        return True

    prometheus = ProcessSpec(
        name="crowd-prometheus",
        command=(sys.executable, str(here / "_crowd_prometheus.py"), str(port)),
        ready=answers(port, "/api/v1/query?query=up&time=0"),
    )
    arguments = (temporal, f"http://{HOST}:{port}", str(releases))
    worker = ProcessSpec(
        name=_WORKER,
        command=(sys.executable, str(here / "_crowd_worker.py"), *arguments),
        ready=at_once,
    )
    async with (
        running(ManagedProcess(spec=prometheus, directory=directory)),
        running(ManagedProcess(spec=worker, directory=directory)) as process,
    ):
        assert process.pid is not None
        yield process.pid


def _shown(log: Path) -> dict[str, float]:
    """Read when the mesh showed each service's traffic to be back on stable."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return {name: float(at) for name, at in (line.split() for line in lines if _SHOWN.fullmatch(line))}


def _resident_mib(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) / 1024


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
