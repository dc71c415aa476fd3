"""Full swaps under open-loop load on one replica.

`python benchmarks/swap.py [--quick] [--json] [--mode in-place]`. A real instance, pinned to one core,
follows a registry that alternates two artifacts; every swap is a full one (read, hash, build, dry-run,
commit, dispose), and a reference is held across each commit. Load comes from a process on another core and
is timed from the intended send. Windows with and without a swap are interleaved: what steady windows differ
among each other is the noise that the bar allows. Every answer is checked against the artifact it names.
In place, the pause is held against its parts: what is in progress ends, the weights are copied, the dry-run.
"""

import argparse
import asyncio
import bisect
import json
import os
import re
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

import runtime.instance
from runtime.__main__ import main as run_instance
from runtime.generation_holder import Generation, GenerationHolder
from runtime.pause import PausePhase
from weightshift.contracts.identity import Service
from weightshift.contracts.manifest import WeightFormat
from weightshift.errors import NotServing
from weightshift.local.demo_models import ModelRecipe, expected_answers, train, write_artifact
from weightshift.local.lone_instance import ADMIN_TOKEN, LoneRegistry, lone_instance
from weightshift.local.traffic import Destination, Traffic
from weightshift.local.traffic_check import Expectations, Tally

SERVICE = Service(model="ranker", environment="benchmark")
RECIPES = tuple(ModelRecipe(f"v{seed}", hidden=(512, 512), seed=seed, steps=3) for seed in (1, 2))
INSTANCE_CORE, LOAD_CORE = 0, 1
REQUESTS_PER_SECOND = 300.0
WINDOW_SECONDS = 0.4
HELD_SECONDS = 0.05
MOST_PAUSE_OVER_PARTS = 1.25


class HeldAcrossCommits(GenerationHolder):
    """Borrows what serves before every commit and returns it a moment after."""

    def install(self, candidate: Generation) -> bool:
        """Install while the outgoing generation is in use."""
        try:
            outgoing = self.acquire()
        except NotServing:
            return super().install(candidate)
        asyncio.get_running_loop().call_later(HELD_SECONDS, self.release, outgoing)
        return super().install(candidate)


def serve() -> int:
    """Be the instance."""
    os.sched_setaffinity(0, {INSTANCE_CORE})
    runtime.instance.GenerationHolder = HeldAcrossCommits  # type: ignore[attr-defined]
    return run_instance()


@dataclass
class Timeline(Tally):
    """A tally that also keeps when each good answer was due, and its latency, in seconds."""

    answers: list[tuple[float, float]] = field(default_factory=list)

    def good(self, artifact: str, revision: str, seconds: float) -> None:
        """Count an answer."""
        super().good(artifact, revision, seconds)
        self.answers.append((time.monotonic() - seconds, seconds))


def load(url: str, expectations: Path) -> int:
    """Be the load generator: send until standard input ends, then write everything that was seen."""
    os.sched_setaffinity(0, {LOAD_CORE})
    traffic = Traffic(
        destination=Destination.parse(url),
        expectations=Expectations.read(expectations),
        rate=REQUESTS_PER_SECOND,
    )
    timeline = Timeline()
    traffic.tally = timeline
    traffic.released.update(recipe.artifact_id for recipe in RECIPES)

    async def run() -> None:
        sending = asyncio.create_task(traffic.run(seconds=86_400))
        await asyncio.to_thread(sys.stdin.read)
        traffic.stop()
        await sending

    asyncio.run(run())
    print(json.dumps({**timeline.figures(), "answers": timeline.answers}))
    return 0


async def store_artifacts(directory: Path, registry: LoneRegistry) -> Path:
    """Train, store and approve both artifacts; return the file of expected answers."""
    models = [train(recipe) for recipe in RECIPES]
    for model in models:
        path = directory / model.recipe.artifact_id
        write_artifact(model, path)
        await registry.push(path, feature_schema="ranker-v1", runtime=WeightFormat.SAFETENSORS)
    expectations = directory / "expectations.json"
    expectations.write_text(json.dumps(expected_answers(models)), encoding="utf-8")
    return expectations


@dataclass(frozen=True)
class Window:
    """A stretch of time, with or without a swap in it."""

    start: float
    end: float
    swaps: bool


async def take_turns(registry: LoneRegistry, swaps: int) -> list[Window]:
    """Alternate windows without and with a swap."""
    windows = []
    for number in range(2 * swaps):
        start = time.monotonic()
        if number % 2:
            await registry.release(RECIPES[(number // 2 + 1) % 2].artifact_id)
            # Until the held reference is back and the old model is gone.
            await asyncio.sleep(2 * HELD_SECONDS)
        await asyncio.sleep(max(0.0, start + WINDOW_SECONDS - time.monotonic()))
        windows.append(Window(start, time.monotonic(), bool(number % 2)))
    return windows


async def measure(swaps: int, mode: str) -> dict[str, Any]:
    """Return the figures of swaps under load."""
    directory = Path(tempfile.mkdtemp(prefix="weightshift-benchmark-"))
    registry = LoneRegistry(service=SERVICE, directory=directory)
    expectations = await store_artifacts(directory, registry)
    serving = [sys.executable, __file__, "--serve"]
    async with (
        registry.serving(),
        lone_instance(
            serving,
            registry=registry,
            cache=directory / "cache",
            settings={"STANDBY_BYTES": "0", "SWAP_MODE": mode},
        ) as instance,
    ):
        await registry.release(RECIPES[0].artifact_id)
        loading = [sys.executable, __file__, "--load", f"{instance.data_url}/predict", str(expectations)]
        generator = await asyncio.create_subprocess_exec(*loading, stdin=PIPE, stdout=PIPE)
        await asyncio.sleep(4 * WINDOW_SECONDS)
        windows = await take_turns(registry, swaps)
        output, _ = await generator.communicate(b"")
        authorization = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with httpx.AsyncClient(base_url=instance.admin_url, headers=authorization) as client:
            exposition = (await client.get("/metrics")).text
    loaded = re.search(r'phase_duration_seconds_count\{.*phase="loading".*\} (\d+)', exposition)
    seen = json.loads(output)
    return {
        "swaps": swaps,
        "full_loads": int(loaded[1]) if loaded else 0,
        **(pauses(exposition) if mode == "in-place" else {}),
        **{name: seen[name] for name in ("requests", "failed", "misrouted", "failures")},
        **compare(windows, sorted(seen["answers"])),
    }


def pauses(exposition: str) -> dict[str, Any]:
    """Compare what pauses took with what each of them cannot do without, which the instance timed too.

    Where there was none there is nothing to compare.
    """
    count, seconds = (
        metric(exposition, rf"admission_pause_seconds_{field}\{{.*\}}") for field in ("count", "sum")
    )
    if count == 0:
        return {"pauses": 0}
    parts = {
        phase.value.removeprefix("pause-").replace("-", "_"): metric(
            exposition, rf'phase_duration_seconds_sum\{{.*phase="{phase.value}".*\}}'
        )
        for phase in PausePhase
    }
    return {
        "pauses": int(count),
        "mean_pause_ms": milliseconds(seconds / count),
        **{f"mean_{name}_ms": milliseconds(part / count) for name, part in parts.items()},
        "pause_over_its_parts": round(seconds / sum(parts.values()), 3),
    }


def metric(exposition: str, series: str) -> float:
    """Return the value of a series, of which there has to be one."""
    (value,) = re.findall(rf"{series} (\S+)$", exposition, re.MULTILINE)
    return float(value)


def compare(windows: Sequence[Window], answers: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Compare each swap window with the steady one before it, and steady ones with each other.

    Windows in which the load generator itself was held up say nothing and are left out.
    """
    due = [moment for moment, _ in answers]
    spans = [answers[bisect.bisect(due, w.start) : bisect.bisect(due, w.end)] for w in windows]
    full = [
        len(span) >= 0.9 * REQUESTS_PER_SECOND * (w.end - w.start)
        for w, span in zip(windows, spans, strict=True)
    ]
    tails = [quantile([s for _, s in span], 0.99) if span else 0.0 for span in spans]
    pairs = [n for n in range(0, len(windows), 2) if full[n] and full[n + 1]]
    steady, swapping = [tails[n] for n in pairs], [tails[n + 1] for n in pairs]
    return {
        "windows_compared": len(pairs),
        "steady_p99_ms": milliseconds(statistics.median(steady)),
        "swap_p99_ms": milliseconds(statistics.median(swapping)),
        "swap_p99_ratio": round(statistics.median(tails[n + 1] / tails[n] for n in pairs), 3),
        "steady_p99_ratio_p95": round(
            quantile([after / before for before, after in pairwise(steady)], 0.95), 3
        ),
        "longest_gap_ms_steady": milliseconds(max(longest_gap(spans[n]) for n in pairs)),
        "longest_gap_ms_swapping": milliseconds(max(longest_gap(spans[n + 1]) for n in pairs)),
        "slowest_ms_steady": milliseconds(max(s for n in pairs for _, s in spans[n])),
        "slowest_ms_swapping": milliseconds(max(s for n in pairs for _, s in spans[n + 1])),
    }


def longest_gap(span: Sequence[tuple[float, float]]) -> float:
    """Return the longest time in seconds in which nothing was answered."""
    return max(after - before for before, after in pairwise(sorted(due + seconds for due, seconds in span)))


def milliseconds(seconds: float) -> float:
    """Return seconds in milliseconds, to a hundredth."""
    return round(seconds * 1000, 2)


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the value that `fraction` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def bar(value: float, limit: float) -> dict[str, Any]:
    """Return a bar's value, limit and whether it is met."""
    return {"value": value, "bar": limit, "ok": value <= limit}


def promised(figures: dict[str, Any], mode: str) -> dict[str, Any]:
    """Return the bars of a mode: in place requests wait by design, so there the pause is bounded instead."""
    bars = {
        "failed": bar(figures["failed"], 0),
        "misrouted": bar(figures["misrouted"], 0),
        "swaps_without_a_load": bar(max(0, figures["swaps"] + 1 - figures["full_loads"]), 0),
    }
    if mode == "double-buffer":
        limit = max(1.3, figures["steady_p99_ratio_p95"])
        bars["swap_p99_ratio"] = bar(figures["swap_p99_ratio"], limit)
    else:
        bars["swaps_without_a_pause"] = bar(max(0, figures["swaps"] - figures["pauses"]), 0)
    if "pause_over_its_parts" in figures:
        bars["pause_over_its_parts"] = bar(figures["pause_over_its_parts"], MOST_PAUSE_OVER_PARTS)
    return bars


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 swaps instead of 1,000")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--mode", choices=("double-buffer", "in-place"), default="double-buffer")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.load:
        return load(arguments.load[0], Path(arguments.load[1]))
    figures = asyncio.run(measure(20 if arguments.quick else 1000, arguments.mode))
    bars = promised(figures, arguments.mode)
    for name, figure in figures.items():
        print(f"{name:28} {figure}")
    for name, result in bars.items():
        print(f"{name:28} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "swap", "figures": figures, "bars": bars}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
