"""Which latency edges are read while a stage is judged: fewer, and to the same verdict."""

import math
from statistics import NormalDist

import pytest

from weightshift.analysis.latency_gate import LatencyRatio
from weightshift.analysis.rules import judged_edges
from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval
from weightshift.contracts.plan import Gate, Metric

EDGES = tuple(0.001 * 1.1**step for step in range(98))
RATIO = Gate(metric=Metric.LATENCY, ratio=1.1)
GATES = (RATIO, Gate(metric=Metric.LATENCY, maximum=0.5), Gate(metric=Metric.ERROR_RATE, maximum=0.03))


def arm(requests: int, *, median: float = 0.02) -> ArmCounts:
    """Two instances whose latencies are spread around a median (s) as exponentials of normal ones."""
    spread = NormalDist(math.log(median), 0.5)
    slower = tuple(round(requests * (1 - spread.cdf(math.log(edge)))) for edge in EDGES)
    counts = InstanceCounts(requests=requests, errors=0, slower=slower)
    return ArmCounts({"a": counts, "b": counts}, fresh=True)


def interval(canary: ArmCounts, stable: ArmCounts) -> Interval:
    return Interval(canary=canary, stable=stable, edges=EDGES)


CALIBRATION = interval(ArmCounts(), arm(40_000))


def test_a_known_service_is_read_at_a_third_of_its_edges() -> None:
    edges = judged_edges(GATES, CALIBRATION)
    assert edges is not None
    assert len(edges) <= len(EDGES) / 2.5
    assert set(edges) <= set(EDGES)
    assert edges[-1] == EDGES[-1]
    assert next(edge for edge in EDGES if edge >= 0.5) in edges


def test_a_service_of_which_little_is_known_is_read_in_full() -> None:
    assert judged_edges(GATES, interval(ArmCounts(), arm(400))) is None


def test_without_a_comparison_of_latencies_a_few_edges_show_the_curve() -> None:
    edges = judged_edges(GATES[2:], CALIBRATION)
    assert edges == (*EDGES[::4], EDGES[-1])


@pytest.mark.parametrize("slowed", [1.0, 1.1, 1.3, 3.0])
@pytest.mark.parametrize("drifted", [0.8, 1.0, 1.3])
def test_fewer_edges_come_to_the_same_evidence(slowed: float, drifted: float) -> None:
    rule = LatencyRatio(RATIO)
    edges = judged_edges(GATES, CALIBRATION)
    assert edges is not None
    judged = interval(arm(1_500, median=0.02 * drifted * slowed), arm(28_500, median=0.02 * drifted))
    evidence = []
    for calibration, one in (
        (CALIBRATION, judged),
        (CALIBRATION.at_edges(edges), judged.at_edges(edges)),
    ):
        state, stable = rule.start(None, calibration, ()), calibration.stable
        for _ in range(5):
            state = rule.advance(state, one, stable)
            stable = stable.plus(one.stable)
        evidence.append((state.harm, state.health, state.effect))
    assert evidence[0] == evidence[1]
