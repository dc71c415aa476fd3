"""Throughput and latency of one replica against other serving frameworks, and what a new model costs each.

`python benchmarks/serving.py [--quick] [--json] [--only NAME ...]`. Every framework gets an environment of
its own under `.weightshift/benchmarks`, installed by the first run (they share this project's torch); one
that cannot be installed or started is named and left out. All serve the same ranker through the same
pre- and post-processing, on one core with all their helper processes, with one thread for the maths and,
where the framework batches, at most 16 requests at once. The load comes from another core and checks every
answer. In every round each server is started and asked by 16 closed-loop clients; then all are asked at 50
and 80 % of the slowest one's maximum, timed from the intended send; then each gets another model, in its
own way, under load at a rate that all can take. `starlette` is no framework but the floor: the model called
on the event loop.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _serving_client
from _serving_systems import SYSTEMS, Rival, RunningRival, RunningWeightshift, Weightshift

from weightshift.local.demo_models import ModelRecipe, expected_answers, train, write_artifact

RECIPES = tuple(
    ModelRecipe(name, hidden=(64, 32), seed=seed, steps=3) for name, seed in (("v1", 1), ("v2", 2))
)
START_SECONDS = 240.0
WARM_UP_SECONDS = 2.0
SHARES = (0.5, 0.8)
FLOOR = "starlette"
System = Rival | Weightshift
Running = RunningRival | RunningWeightshift


@dataclass(frozen=True)
class Effort:
    """How long everything is measured, in seconds."""

    rounds: int
    closed: float
    open: float
    replacing: float


QUICK, FULL = Effort(1, 3.0, 3.0, 10.0), Effort(5, 10.0, 20.0, 30.0)


class Benchmark:
    """The models, and how servers are asked."""

    def __init__(self, directory: Path, effort: Effort) -> None:
        self._effort = effort
        models = [train(recipe) for recipe in RECIPES]
        self._models = {model.recipe.artifact_id: directory / model.recipe.artifact_id for model in models}
        for model in models:
            write_artifact(model, self._models[model.recipe.artifact_id])
        self._expectations = directory / "expectations.json"
        self._expectations.write_text(json.dumps(expected_answers(models)), encoding="utf-8")

    async def closed(self, system: System) -> dict[str, Any]:
        """Return the figures of closed-loop clients."""
        async with system.serving(self._models) as running:
            await self._warm_up(system, running)
            return await self._ask(system, running.url, seconds=self._effort.closed)

    async def open(self, system: System, rates: Sequence[float]) -> list[dict[str, Any]]:
        """Return the figures of each rate."""
        async with system.serving(self._models) as running:
            await self._warm_up(system, running)
            return [
                await self._ask(system, running.url, seconds=self._effort.open, rate=rate) for rate in rates
            ]

    async def replacing(self, system: System, rate: float) -> dict[str, Any]:
        """Return the figures of a run in whose middle the model is replaced."""
        seconds = self._effort.replacing
        async with system.serving(self._models) as running:
            await self._warm_up(system, running)
            asking = asyncio.create_task(self._ask(system, running.url, seconds=seconds, rate=rate))
            await asyncio.sleep(seconds / 4)
            await running.replace()
            return await asking

    async def _warm_up(self, system: System, running: Running) -> None:
        """Wait for the first answer, then ask for a while."""
        url = running.url
        deadline = time.monotonic() + START_SECONDS
        while True:
            figures = await self._ask(system, url, seconds=0.2)
            if figures["per_second"]:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no answer within {START_SECONDS:g} s: {figures['failures']} {last_words(running)}"
                )
        await self._ask(system, url, seconds=WARM_UP_SECONDS)

    async def _ask(self, system: System, url: str, **how: float) -> dict[str, Any]:
        arguments = {"url": url, "wire": system.wire, "expectations": str(self._expectations), **how}
        client = await asyncio.create_subprocess_exec(
            sys.executable, _serving_client.__file__, json.dumps(arguments), stdout=PIPE
        )
        output, _ = await client.communicate()
        figures: dict[str, Any] = json.loads(output)
        return figures


async def measure(effort: Effort, systems: Sequence[System]) -> dict[str, Any]:
    """Return the figures of every system, and why some have none."""
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="weightshift-benchmark-") as name:
        benchmark = Benchmark(Path(name), effort)
        closed: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for _ in range(effort.rounds):
            for system in [one for one in systems if one.name not in left_out]:
                try:
                    closed[system.name].append(await benchmark.closed(system))
                except (TimeoutError, OSError) as error:
                    left_out[system.name] = f"it could not be asked: {error}"
        present = [one for one in systems if one.name not in left_out]
        throughput = {one.name: [run["per_second"] for run in closed[one.name]] for one in present}
        slowest = min(statistics.median(values) for values in throughput.values())
        figures: dict[str, Any] = {}
        for system in present:
            steady = await benchmark.open(system, [share * slowest for share in SHARES])
            swap = await benchmark.replacing(system, SHARES[0] * slowest)
            figures[system.name] = summary(throughput[system.name], closed[system.name], steady, swap)
            figures[system.name]["replaced_by"] = system.replacing
            show(system.name, figures[system.name])
    return {"asked_per_second": round(slowest, 1), "systems": figures, "left_out": left_out}


def last_words(running: Running) -> str:
    """Return the end of a server's log."""
    log = getattr(running, "log", None)
    return log.read_text(errors="replace")[-300:] if log is not None else ""


def summary(
    throughput: Sequence[float],
    closed: Sequence[dict[str, Any]],
    steady: Sequence[dict[str, Any]],
    swap: dict[str, Any],
) -> dict[str, Any]:
    """Return one system's figures; throughput as a median with its least and greatest round."""
    return {
        "per_second": round(statistics.median(throughput), 1),
        "per_second_least": round(min(throughput), 1),
        "per_second_greatest": round(max(throughput), 1),
        **{
            f"p99_ms_at_{100 * share:.0f}": round(run["p99_ms"], 2)
            for share, run in zip(SHARES, steady, strict=True)
        },
        "failed": sum(run["failed"] for run in (*closed, *steady)),
        "replacing_failed": swap["failed"],
        "replacing_failures": swap["failures"],
        "replacing_longest_gap_ms": round(swap["longest_gap_ms"], 1),
    }


def show(name: str, figures: dict[str, Any]) -> None:
    """Print one system's line."""
    print(name, " ".join(f"{key}={value}" for key, value in figures.items()), flush=True)


def bars(figures: dict[str, Any]) -> dict[str, Any]:
    """Return throughput and p99 against the best framework measured, and what a release cost."""
    systems = figures["systems"]
    own = systems["weightshift"]
    others = [one for name, one in systems.items() if not name.startswith("weightshift") and name != FLOOR]
    found = {"failed_by_a_release": bar(own["replacing_failed"], 0, least=False)}
    if others:
        best = max(one["per_second"] for one in others)
        found["throughput_ratio"] = bar(round(own["per_second"] / best, 3), 1.0, least=True)
        for share in SHARES:
            key = f"p99_ms_at_{100 * share:.0f}"
            ratio = round(own[key] / min(one[key] for one in others), 3)
            found[f"p99_ratio_at_{100 * share:.0f}"] = bar(ratio, 1.0, least=False)
    return found


def bar(value: float, limit: float, *, least: bool) -> dict[str, Any]:
    """Return a bar's value, limit and whether it is met."""
    return {"value": value, "bar": limit, "ok": value >= limit if least else value <= limit}


def main() -> int:
    """Parse, install, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of a few seconds each")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--only", nargs="+", default=[], help="compare with these alone")
    arguments = parser.parse_args()
    wanted = [one for one in SYSTEMS if not arguments.only or one.name in ("weightshift", *arguments.only)]
    missing = {one.name: problem for one in wanted if (problem := one.install()) is not None}
    systems = [one for one in wanted if one.name not in missing]
    figures = asyncio.run(measure(QUICK if arguments.quick else FULL, systems))
    figures["left_out"] = {**missing, **figures["left_out"]}
    for name, reason in figures["left_out"].items():
        print(f"{name} left out: {reason}")
    found = bars(figures)
    for name, result in found.items():
        print(f"{name:28} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "serving", "figures": figures, "bars": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
