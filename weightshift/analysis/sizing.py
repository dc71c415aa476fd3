"""How many requests a verdict takes, and what a canary can carry: asked before a release starts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from weightshift.analysis.gates import pass_ratio
from weightshift.contracts.control import CONTROL_PERCENT, Control
from weightshift.contracts.plan import Gate, Metric, Plan, ResolvedStage

DOUBLED = 2.0
_PASS_FACTOR = 8.0
_BREACH_FACTOR = 20.0


@dataclass(frozen=True)
class ObservedTraffic:
    """What stable does now: requests per second, fraction of errors, and how much instances vary.

    `in_flight` is how many requests all its instances together work on at a time, in the mean.
    """

    requests_per_second: float
    error_fraction: float
    dispersion: float = 1.0
    in_flight: float = 0.0


@dataclass(frozen=True)
class PoolCapacity:
    """What the instances of both cohorts that report can carry, relative to each other."""

    stable: float
    canary: float

    def load_on_canary(self, weight: int) -> float:
        """Return the canary's load per unit of capacity at a weight, as a multiple of stable's now."""
        return weight / 100 * self.stable / self.canary


def requests_to_pass(
    *, share: float, bad_fraction: float, ratio: float, margin: float, dispersion: float = 1.0
) -> float:
    """Return the canary requests after which a canary equal to stable has passed in 9 of 10 releases.

    `share` is the canary's share of the requests, `ratio` and `margin` what is still acceptable.
    """
    accepted = ratio + margin / bad_fraction
    information = accepted - 1 - math.log(accepted)
    return _PASS_FACTOR * dispersion / (information * (1 - share) * bad_fraction)


def requests_to_breach(
    *,
    share: float,
    bad_fraction: float,
    harm: float,
    ratio: float,
    margin: float,
    dispersion: float = 1.0,
) -> float:
    """Return the canary requests after which `harm` times stable's bad events are a breach in 95 %.

    Infinite where the gate forgives that much.
    """
    forgiven = ratio + margin / bad_fraction
    if harm <= forgiven:
        return math.inf
    information = harm * math.log(harm / forgiven) - (harm - forgiven)
    return _BREACH_FACTOR * dispersion / (information * (1 - share) * bad_fraction)


def sample_size_problems(plan: Plan, traffic: ObservedTraffic) -> list[str]:
    """Return the floors of samples that the observed traffic cannot reach within the longest windows. Pure.

    Stages that are not judged need nothing.
    """
    return [
        f"stage {number}: about {reached:.0f} canary requests arrive within max_window, fewer than"
        f" min_samples {stage.min_samples}; raise the weight or max_window"
        for number, stage, reached in _reached(plan, traffic)
        if reached < stage.min_samples
    ]


def slow_gates(plan: Plan, traffic: ObservedTraffic) -> list[str]:
    """Return the comparisons that will probably still be undecided at the end of their longest window. Pure.

    Comparisons without an arm to compare with need nothing; at 100 % it is the plan's `control`.
    """
    return [
        f"stage {number}: gate {gate.name} needs about {wanted:.0f} canary requests to pass, and"
        f" about {reached:.0f} arrive within max_window; raise the weight or max_window"
        for number, stage, reached in _reached(plan, traffic)
        for gate in stage.gates
        if (wanted := _requests_wanted(gate, stage, traffic, plan.control)) > reached
    ]


def overload_problems(
    plan: Plan, traffic: ObservedTraffic, capacity: PoolCapacity, *, highest_load: float
) -> list[str]:
    """Return the stages whose weight the canary's capacity cannot carry. Pure.

    Such a stage gives a unit of the canary's capacity more than `highest_load` times what one of stable's
    carries now, and keeps it busy all the time: with little to do, even one instance carries everything.
    """
    largest = math.floor(100 * highest_load * capacity.canary / capacity.stable)
    return [
        f"stage {number}: at {stage.weight} % a canary instance carries {load:.1f} times what a stable one"
        f" does now; the canary can carry at most {largest} %, so add instances or lower the weight"
        for number, stage in enumerate(plan.resolved_stages(), start=1)
        if (load := capacity.load_on_canary(stage.weight)) > highest_load
        and load * traffic.in_flight / capacity.stable >= 1
    ]


def _reached(plan: Plan, traffic: ObservedTraffic) -> Iterator[tuple[int, ResolvedStage, float]]:
    """Yield every judged stage with its number and the canary requests of its longest window."""
    for number, stage in enumerate(plan.resolved_stages(), start=1):
        if stage.max_window:
            seconds = stage.max_window.total_seconds()
            yield number, stage, traffic.requests_per_second * stage.weight / 100 * seconds


def _requests_wanted(gate: Gate, stage: ResolvedStage, traffic: ObservedTraffic, control: Control) -> float:
    has_control = stage.weight < 100 or control is not Control.NONE
    if gate.metric is not Metric.ERROR_RATE or gate.ratio is None or not has_control:
        return 0.0
    smaller = stage.weight if stage.weight < 100 else CONTROL_PERCENT
    return requests_to_pass(
        share=min(stage.weight, 100 - CONTROL_PERCENT) / 100,
        # Without a single error so far the margin alone decides; this keeps the formula finite.
        bad_fraction=max(traffic.error_fraction, gate.margin, 1e-9),
        ratio=max(pass_ratio(smaller), gate.ratio),
        margin=gate.margin,
        dispersion=traffic.dispersion,
    )
