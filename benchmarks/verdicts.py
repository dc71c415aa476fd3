"""How often releases are stopped wrongly, and how soon rightly, on five kinds of simulated traffic.

`python benchmarks/verdicts.py [--quick] [--json] [--releases N] [--seed N] [--kind NAME]`. Every stream is
judged by Weightshift's own judge with six gates through stages of 5, 25, 50 and 100 % (10 minutes each, 10 s
intervals; at 100 % stable gets a mirrored 5 %), and by a fixed threshold and a repeated rank test beside
it. A stage that ends without a verdict goes on, as if a person had let it. Bars are in percent of the
releases. One core, about 6 s for each release of every kind and stream: the default of 400 takes about 40
minutes, `--kind` splits it. `--quick` takes less than a minute, which is too few releases to show 1 %.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from _rivals import NEVER, fixed_threshold, rank_test
from _streams import SCORE_EDGES, STREAMS, Counts, Defect, simulate

from weightshift.analysis.gates import Hard
from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval
from weightshift.analysis.sequential import Wealth
from weightshift.analysis.verdict import StageJudge
from weightshift.contracts.control import CONTROL_PERCENT
from weightshift.contracts.plan import Gate, Metric, ResolvedStage
from weightshift.contracts.verdict import GateVerdict, StageOutcome

HISTORY, CALIBRATION, STAGE = 360, 60, 60
SECONDS = 10
BATCH = 20
GATES = (
    Gate(metric=Metric.ERROR_RATE, maximum=0.03),
    Gate(metric=Metric.ERROR_RATE, ratio=1.1),
    Gate(metric=Metric.LATENCY, ratio=1.1),
    Gate(metric=Metric.LATENCY, maximum=0.12),
    Gate(metric=Metric.SCORE_DRIFT, maximum=0.05),
)


@dataclass(frozen=True)
class Experiment:
    """One kind of canary, and the stages it is judged through: (weight, intervals)."""

    name: str
    defect: Defect
    stages: tuple[tuple[int, int], ...]
    streams: tuple[str, ...] = tuple(STREAMS)
    until_passed: bool = False
    gates: tuple[Gate, ...] = GATES


ALL_STAGES = ((5, STAGE), (25, STAGE), (50, STAGE), (100, STAGE))
TWO_STAGES = ALL_STAGES[:2]
MILD = ("iid", "pods")
MIDDLE_OF_THIRD = HISTORY + 2 * STAGE + STAGE // 2
EXPERIMENTS = (
    Experiment("equal", Defect(), ALL_STAGES),
    Experiment("errors_doubled", Defect(errors=2.0, start=HISTORY), TWO_STAGES),
    Experiment("latency_1.25", Defect(latency=1.25, start=HISTORY), TWO_STAGES),
    Experiment("errors_1.05", Defect(errors=1.05, start=HISTORY), ALL_STAGES),
    Experiment("equal_passes", Defect(), ((5, 6 * STAGE),), until_passed=True),
    Experiment("errors_doubled_mid_stage", Defect(errors=2.0, start=MIDDLE_OF_THIRD), ALL_STAGES, MILD),
    Experiment("scores_shifted_quarter", Defect(scores=0.25, start=HISTORY), TWO_STAGES, MILD),
    Experiment(
        "latency_1.25_heavy",
        Defect(latency=1.25, deviation=1.0, start=HISTORY),
        TWO_STAGES,
        gates=(*GATES[:3], Gate(metric=Metric.LATENCY, maximum=0.5), GATES[4]),
    ),
    Experiment("latency_1.25_tail", Defect(tail=1.25, start=HISTORY), TWO_STAGES),
)


@dataclass(frozen=True)
class Judged:
    """What became of one release: intervals until a breach or until healthy, and by which gate."""

    breach: int | None = None
    gate: str = ""
    passed: int | None = None
    healthy_after_first_window: bool = False


def judge(counts: Counts, release: int, experiment: Experiment) -> Judged:
    """Judge one release through all stages, the evidence of harm carried along."""
    intervals = counts.intervals(release, 0, HISTORY + sum(length for _, length in experiment.stages))
    wealth: dict[str, Wealth] = {}
    begin, healthy_at_end = HISTORY, False
    for weight, length in experiment.stages:
        window = timedelta(seconds=length * SECONDS)
        one = StageJudge(
            ResolvedStage(
                weight=weight, window=window, max_window=window, min_samples=200, gates=experiment.gates
            ),
            control=CONTROL_PERCENT if weight == 100 else 0,
        )
        history = intervals[begin - HISTORY : begin]
        state = one.start(wealth, _calibration(history), history)
        for number in range(begin, begin + length):
            state = one.advance(state, intervals[number])
            verdict = one.verdict(state)
            if verdict.outcome is StageOutcome.BREACH:
                gate = next(g.gate for g in verdict.gates if g.verdict is GateVerdict.BREACH)
                return Judged(number + 1 - HISTORY, gate, None, healthy_at_end)
            if experiment.until_passed and verdict.outcome is StageOutcome.HEALTHY:
                return Judged(passed=number + 1 - HISTORY)
        if begin == HISTORY:
            healthy_at_end = verdict.outcome is StageOutcome.HEALTHY
        wealth = {name: evidence.harm for name, evidence in state.evidence.items()}
        begin += length
    return Judged(healthy_after_first_window=healthy_at_end)


def _calibration(history: Sequence[Interval]) -> Interval:
    stable = ArmCounts()
    for interval in history[-CALIBRATION:]:
        stable = stable.plus(interval.stable)
    return Interval(ArmCounts(), stable, history[-1].edges, SCORE_EDGES)


def run(experiment: Experiment, name: str, releases: int, seed: int) -> dict[str, Any]:
    """Simulate and judge releases on one stream, in batches that bound the memory."""
    position = list(STREAMS).index(name)
    kind = [one.name for one in EXPERIMENTS].index(experiment.name)
    source = np.random.default_rng([seed, position, kind])
    weights = [0] * HISTORY + [weight for weight, length in experiment.stages for _ in range(length)]
    bounds = [HISTORY]
    for _, length in experiment.stages:
        bounds.append(bounds[-1] + length)
    ours: list[Judged] = []
    fixed: list[int] = []
    rank: list[int] = []
    while len(ours) < releases:
        counts = simulate(STREAMS[name], weights, min(BATCH, releases - len(ours)), source, experiment.defect)
        ours += [judge(counts, release, experiment) for release in range(counts.requests.shape[0])]
        fixed += fixed_threshold(counts, bounds[0], bounds[-1]).tolist()
        rank += rank_test(counts, list(pairwise(bounds))).tolist()
    return {
        "ours": _summary([one.breach for one in ours]),
        "fixed": _summary([None if at == NEVER else at for at in fixed]),
        "rank": _summary([None if at == NEVER else at for at in rank]),
        "healthy_after_first_window": _percent(one.healthy_after_first_window for one in ours),
        "passed": _percent(one.passed is not None for one in ours),
        "passed_in_20_minutes": _percent(one.passed is not None and one.passed <= 2 * STAGE for one in ours),
        "gates": sorted({one.gate for one in ours if one.gate}),
    }


def _percent(hits: Iterable[bool]) -> float:
    values = list(hits)
    return round(100 * sum(values) / len(values), 2)


def _summary(stopped: Sequence[int | None]) -> dict[str, float]:
    """Return the percentage stopped in all and after 5, 10 and 20 minutes, and the median in seconds."""
    seconds = [SECONDS * at for at in stopped if at is not None]
    by = {
        f"in_{minutes}_minutes": round(100 * sum(s <= 60 * minutes for s in seconds) / len(stopped), 2)
        for minutes in (5, 10, 20)
    }
    middle = median(seconds) if seconds else 0
    return {"stopped": round(100 * len(seconds) / len(stopped), 2), **by, "median_seconds": middle}


def requests_until_hard_breach(held_intervals: int) -> int:
    """Return how many requests that all fail in one interval are a breach, after a long hold."""
    hard, threshold = Hard(), StageJudge(_hold()).threshold
    quiet = _failing(250, 2)
    evidence = hard.start(None, quiet, ())
    for _ in range(held_intervals):
        evidence = hard.advance(evidence, quiet, quiet.stable)
    return next(
        n
        for n in range(1, 1_000)
        if hard.judge(hard.advance(evidence, _failing(n, n), quiet.stable), threshold).verdict
        is GateVerdict.BREACH
    )


def _hold() -> ResolvedStage:
    day = timedelta(days=1)
    return ResolvedStage(weight=5, window=day, max_window=day, min_samples=0, gates=GATES)


def _failing(requests: int, errors: int) -> Interval:
    canary = ArmCounts({"0": InstanceCounts(requests, errors, ())}, fresh=True)
    return Interval(canary, ArmCounts({"1": InstanceCounts(5_700, 57, ())}, fresh=True), ())


@dataclass(frozen=True)
class Bar:
    """What one figure of a kind of canary on a stream has to be, in percent of the releases."""

    kind: str
    stream: str
    figure: str
    limit: float
    at_least: bool = False


BARS = (
    *(Bar("equal", stream, "stopped", 1) for stream in STREAMS),
    *(Bar("errors_1.05", stream, "stopped", 1) for stream in STREAMS),
    *(Bar("latency_1.25", stream, "in_10_minutes", 95, at_least=True) for stream in STREAMS),
    *(Bar("latency_1.25_heavy", stream, "in_20_minutes", 90, at_least=True) for stream in STREAMS),
    *(Bar("latency_1.25_tail", stream, "in_20_minutes", 90, at_least=True) for stream in STREAMS),
    *(Bar("errors_doubled", stream, "healthy_after_first_window", 5) for stream in STREAMS),
    Bar("errors_doubled", "iid", "in_5_minutes", 95, at_least=True),
    Bar("errors_doubled", "common", "in_10_minutes", 95, at_least=True),
    Bar("errors_doubled", "batch", "in_20_minutes", 95, at_least=True),
    Bar("errors_doubled", "pods", "in_20_minutes", 95, at_least=True),
    *(Bar("equal_passes", stream, "passed", 99, at_least=True) for stream in ("iid", "common")),
)


def compared(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare the figures that were taken with their bars."""
    found: dict[str, dict[str, Any]] = {}
    for bar in BARS:
        if bar.kind in figures:
            measured = figures[bar.kind][bar.stream]
            value = measured.get(bar.figure, measured["ours"].get(bar.figure))
            ok = value >= bar.limit if bar.at_least else value <= bar.limit
            found[f"{bar.kind}_{bar.figure}_{bar.stream}"] = {"value": value, "bar": bar.limit, "ok": ok}
    for name, limit in (("total_failure_requests", 20), ("total_failure_requests_after_a_day", 50)):
        found[name] = {"value": figures[name], "bar": limit, "ok": figures[name] <= limit}
    return found


def main() -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="6 releases of each kind instead of 400")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--releases", type=int, default=None, help="releases of each kind and stream")
    kinds = [experiment.name for experiment in EXPERIMENTS]
    parser.add_argument("--kind", action="append", choices=kinds, help="only this kind of canary")
    parser.add_argument("--seed", type=int, default=20_260, help="seed of the random numbers")
    arguments = parser.parse_args()
    releases = arguments.releases or (6 if arguments.quick else 400)
    figures: dict[str, Any] = {
        "releases": releases,
        "seed": arguments.seed,
        "total_failure_requests": requests_until_hard_breach(0),
        "total_failure_requests_after_a_day": requests_until_hard_breach(8_640),
    }
    print(f"releases of each kind: {releases}, seed: {arguments.seed}", flush=True)
    chosen = [one for one in EXPERIMENTS if one.name in (arguments.kind or kinds)]
    for experiment in chosen:
        figures[experiment.name] = {}
        for stream in experiment.streams:
            one = run(experiment, stream, releases, arguments.seed)
            figures[experiment.name][stream] = one
            print(f"{experiment.name:26} {stream:7} {json.dumps(one)}", flush=True)
    met = compared(figures)
    for name, result in met.items():
        print(f"{name:44} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "verdicts", "figures": figures, "bars": met}))


if __name__ == "__main__":
    main()
