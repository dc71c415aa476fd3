"""The control plane: overhead of a release, and rollback from signal to read-back, alone and in a crowd.

`python benchmarks/control_plane.py [--quick] [--json] [--crowd N]`. Bars: rollback p50 <= 60 ms and p99 <=
200 ms from the signal until Envoy itself shows 0 % canary; a release with zero-length windows <= 3 s beyond
its load time; fewer than 150 history events for a four-stage release; p99 <= 500 ms with 1,000 releases
judging every 10 s on one worker. The first ones run on the local stack. The crowd has a real Temporal server,
a worker process and a stand-in for Prometheus over HTTP; its registry and mesh are in memory.

Latencies are taken on a shared machine: the bare round trip that a rollback consists of, and for how long
the processes involved waited for a processor meanwhile, are measured in the same run and printed beside them.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _crowd import measure_crowd

from weightshift.contracts.plan import Plan
from weightshift.contracts.release import ReleasePhase, RollbackRequest
from weightshift.local.live_service import LiveService, live_service
from weightshift.mesh.open_mesh import OpenMesh, open_mesh
from weightshift.settings import MeshSettings

STAGES = [5, 25, 50, 100]
AT_ONCE = Plan.model_validate({"stages": STAGES, "window": 0, "max_window": 0, "retain": 0})
BETWEEN_READS = 0.005
"""Seconds; every read costs the mesh agent and Envoy the time in which they could carry the rollback out."""
HELD = Plan.model_validate({"stages": [50, 100], "window": "1h", "retain": 0})
STAGED = Plan.model_validate(
    {
        "stages": STAGES,
        "window": "2s",
        "interval": 1,
        "max_window": "60s",
        "min_samples": 10,
        "retain": "1s",
        "gates": [{"metric": "error_rate", "maximum": 0.5}],
    }
)


@dataclass(frozen=True)
class RollbackTime:
    """From the signal to the read-back, and the sum of what its processes waited for a processor; in ms."""

    total: float
    waited: float


async def roll_back(live: LiveService, mesh: OpenMesh, artifact_id: str) -> RollbackTime:
    """Release up to 50 %, send the signal, and time until the mesh reads back 0 % canary."""
    service = live.stack.service
    await live.start(artifact_id, HELD)
    while (await live.client.status(service)).phase is not ReleasePhase.OBSERVING:
        await asyncio.sleep(0.02)
    while (await mesh.read(service)).split.canary != 50:
        await asyncio.sleep(0.02)
    waited, started = waited_for_processor(live), time.perf_counter()
    await live.client.signal_rollback(service, RollbackRequest(operator="benchmark"))
    while (await mesh.read(service)).split.canary != 0:
        await asyncio.sleep(BETWEEN_READS)
    milliseconds = (time.perf_counter() - started) * 1000
    waited = waited_for_processor(live) - waited
    await live.ended()
    return RollbackTime(milliseconds, waited)


def waited_for_processor(live: LiveService) -> float:
    """Return for how many milliseconds threads that take part in a rollback were ready and not running."""
    pids = [os.getpid(), *(live.stack.pid(name) for name in ("temporal", "worker", "mesh-agent", "envoy"))]
    waited = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            waited += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return waited / 1e6


async def read_milliseconds(live: LiveService, mesh: OpenMesh) -> float:
    """Time one bare read-back: the resolution of the latencies above."""
    started = time.perf_counter()
    await mesh.read(live.stack.service)
    return (time.perf_counter() - started) * 1000


async def measure(rounds: int, crowd: int) -> dict[str, Any]:
    """Measure on one stack, then in a crowd, and return the figures."""
    with tempfile.TemporaryDirectory(
        prefix="weightshift-benchmark-", ignore_cleanup_errors=True
    ) as directory:
        figures = await measure_stack(Path(directory) / "alone", rounds)
        if crowd:
            rollbacks = max(1, min(rounds, crowd // 5))
            figures |= await measure_crowd(Path(directory) / "crowd", releases=crowd, rollbacks=rollbacks)
    return figures


async def measure_stack(directory: Path, rounds: int) -> dict[str, Any]:
    """Measure what needs one service."""
    async with live_service(directory) as live:
        mesh = open_mesh(MeshSettings())
        started = time.perf_counter()
        await live.release("v42", AT_ONCE)
        overhead = time.perf_counter() - started
        async with live.traffic("v41", "v42"):
            await live.release("v41", STAGED)
            events = len(await live.history())
            reads = [await read_milliseconds(live, mesh) for _ in range(50)]
            rollbacks = [await roll_back(live, mesh, "v42") for _ in range(rounds)]
        await mesh.aclose()
    taken = sorted(one.total for one in rollbacks)
    return {
        "release_seconds_with_zero_windows": round(overhead, 2),
        "history_events_four_stages": events,
        "mesh_read_ms_p50": round(statistics.median(reads), 1),
        "rollback_ms_p50": round(statistics.median(taken), 1),
        "rollback_ms_p99": round(taken[int(0.99 * (len(taken) - 1))], 1),
        "rollback_waited_for_processor_ms_p50": round(statistics.median(one.waited for one in rollbacks), 1),
        "rollbacks": rounds,
    }


def bar(value: float, limit: float) -> dict[str, Any]:
    """Return a bar's value, limit and whether it is met."""
    return {"value": value, "bar": limit, "ok": value <= limit}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10 rollbacks and a crowd of 50")
    parser.add_argument("--crowd", type=int, default=None, help="releases in flight; 0 leaves them out")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    crowd = (50 if arguments.quick else 1_000) if arguments.crowd is None else arguments.crowd
    figures = asyncio.run(measure(10 if arguments.quick else 200, crowd))
    bars = {
        "rollback_p50": bar(figures["rollback_ms_p50"], 60),
        "rollback_p99": bar(figures["rollback_ms_p99"], 200),
        "zero_window_release": bar(figures["release_seconds_with_zero_windows"], 3),
        "history_events": bar(figures["history_events_four_stages"], 149),
    }
    if crowd:
        bars["crowd_rollback_p99"] = bar(figures["crowd_rollback_ms_p99"], 500)
    for name, figure in figures.items():
        print(f"{name:36} {figure}")
    for name, result in bars.items():
        print(f"{name:36} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "control_plane", "figures": figures, "bars": bars}))
    sys.stdout.flush()
    # Temporal's client threads may abort an interpreter that shuts down in order.
    os._exit(0)


if __name__ == "__main__":
    main()
