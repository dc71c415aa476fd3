"""Which latencies to compare tails at, chosen from what stable did before."""

from dataclasses import dataclass

from weightshift.analysis.samples import ArmCounts, Interval

MINIMUM_REQUESTS = 200
_TAIL_MULTIPLES = (1.6, 1.0, 0.6)
_SMALLEST_TAIL = 0.3
_LARGEST_TAIL = 5.0
_ROOM = 10.0
"""How many times shorter or longer stable's tail may become while edges chosen before still fit it."""
_WELL_KNOWN = 100
"""Requests that a tail must have had before it is known where it lies."""


@dataclass(frozen=True)
class LatencyEdges:
    """Indices of latency edges around stable's quantile.

    `harm` are compared arm against arm; `health` are the edges twice the tolerated factor further out,
    one for each of `harm`; `middle_times_ratio` is the edge one factor beyond the middle one.
    """

    harm: tuple[int, ...]
    health: tuple[int, ...]
    middle: int
    middle_times_ratio: int


def choose_edges(
    stable: ArmCounts, edges: tuple[float, ...], *, quantile: float, ratio: float
) -> LatencyEdges | None:
    """Pick the edges beyond which 1.6, 1.0 and 0.6 times `1 - quantile` of stable's requests lay.

    None while stable has too few requests, or when no edge has 0.3 to 5 times that tail.
    """
    if stable.requests < MINIMUM_REQUESTS or len(stable.totals_slower) != len(edges):
        return None
    tail = 1 - quantile
    fractions = [slower / stable.requests for slower in stable.totals_slower]
    usable = [i for i, f in enumerate(fractions) if _SMALLEST_TAIL * tail <= f <= _LARGEST_TAIL * tail]
    if not usable:
        return None
    chosen = tuple(
        min(usable, key=lambda i: abs(fractions[i] - multiple * tail)) for multiple in _TAIL_MULTIPLES
    )
    return LatencyEdges(
        harm=chosen,
        health=tuple(_first_at_least(edges, edges[i] * _relaxed(ratio)) for i in chosen),
        middle=chosen[1],
        middle_times_ratio=_first_at_least(edges, edges[chosen[1]] * ratio),
    )


def edges_around(calibration: Interval, *, quantile: float, ratio: float) -> tuple[float, ...] | None:
    """Return the edges in seconds that `choose_edges` can come to want during a stage.

    `calibration` is what stable did before it; None while too few of its requests lie beyond the quantile.
    """
    stable, edges, tail = calibration.stable, calibration.edges, 1 - quantile
    if stable.requests * tail < _WELL_KNOWN or len(stable.totals_slower) != len(edges):
        return None
    fractions = [slower / stable.requests for slower in stable.totals_slower]
    near = [i for i, fraction in enumerate(fractions) if tail / _ROOM <= fraction <= tail * _ROOM]
    if not near:
        return None
    furthest = _first_at_least(edges, edges[near[-1]] * _relaxed(ratio))
    return edges[near[0] : furthest + 1]


def _relaxed(ratio: float) -> float:
    """Return twice the tolerated factor: beyond it, evidence of health is looked for."""
    return 1 + 2 * (ratio - 1)


def _first_at_least(edges: tuple[float, ...], value: float) -> int:
    return next((i for i, edge in enumerate(edges) if edge >= value), len(edges) - 1)
