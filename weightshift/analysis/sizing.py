"""How many requests a verdict takes: asked before a release starts, so that no stage waits in vain."""

import math
from dataclasses import dataclass

from weightshift.analysis.gates import pass_ratio
from weightshift.contracts.plan import Gate, Metric, Plan, ResolvedStage

DOUBLED = 2.0
_PASS_FACTOR = 8.0
_BREACH_FACTOR = 20.0
_FLOOR_FACTOR = 3.0


@dataclass(frozen=True)
class ObservedTraffic:
    """What stable does now: requests per second, fraction of errors, and how much instances vary."""

    requests_per_second: float
    error_fraction: float
    dispersion: float = 1.0


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


def least_samples(*, bad_fraction: float, ratio: float, margin: float, dispersion: float = 1.0) -> int:
    """Return the canary requests below which no healthy verdict means anything."""
    return math.ceil(_FLOOR_FACTOR * dispersion / (ratio * bad_fraction + margin))


def sample_size_problems(plan: Plan, traffic: ObservedTraffic) -> list[str]:
    """Return what the observed traffic cannot reach within a plan's longest windows. Pure.

    Stages that are not judged, and comparisons without an arm to compare with, need nothing.
    """
    problems = []
    for number, stage in enumerate(plan.resolved_stages(), start=1):
        reached = traffic.requests_per_second * stage.weight / 100 * stage.max_window.total_seconds()
        if not stage.max_window:
            continue
        if reached < stage.min_samples:
            problems.append(
                f"stage {number}: about {reached:.0f} canary requests arrive within max_window, fewer than"
                f" min_samples {stage.min_samples}; raise the weight or max_window"
            )
        for gate in stage.gates:
            wanted = _requests_wanted(gate, stage, traffic)
            if wanted > reached:
                problems.append(
                    f"stage {number}: gate {gate.name} needs about {wanted:.0f} canary requests to pass, and"
                    f" about {reached:.0f} arrive within max_window; raise the weight or max_window"
                )
    return problems


def _requests_wanted(gate: Gate, stage: ResolvedStage, traffic: ObservedTraffic) -> float:
    compared = gate.metric is Metric.ERROR_RATE and gate.ratio is not None and stage.weight < 100
    if not compared or gate.ratio is None:
        return 0.0
    return requests_to_pass(
        share=stage.weight / 100,
        # Without a single error so far the margin alone decides; this keeps the formula finite.
        bad_fraction=max(traffic.error_fraction, gate.margin, 1e-9),
        ratio=max(pass_ratio(stage.weight), gate.ratio),
        margin=gate.margin,
        dispersion=traffic.dispersion,
    )
