import pytest

from weightshift.analysis.curve import POINTS, Curve, latency_quantile
from weightshift.analysis.evidence import Evidence
from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval
from weightshift.analysis.sequential import Wealth

EDGES = (0.1, 0.2, 0.4)


def arm(requests: int, errors: int = 0, slower: tuple[int, ...] = (10, 1, 0)) -> ArmCounts:
    one = InstanceCounts(requests=requests, errors=errors, slower=slower)
    return ArmCounts({"a": one, "b": one}, fresh=True)


def evidence(harm: float) -> dict[str, Evidence]:
    return {
        "errors": Evidence(Wealth(active=(harm,), idle=0.0), health=((2.0,),)),
        "hard": Evidence(Wealth((1.0,))),
    }


def after(curve: Curve, number: int, interval: Interval) -> Curve:
    return curve.after(interval, evidence(float(number + 1)), until=float(number))


@pytest.mark.parametrize(
    ("slower", "quantile", "expected"),
    [
        ((10, 1, 0), 0.99, 0.2),
        ((50, 20, 0), 0.9, 0.3),
        ((0, 0, 0), 0.5, 0.05),
        ((100, 100, 100), 0.99, 0.4),
    ],
)
def test_a_quantile_lies_between_the_edges_around_it(
    slower: tuple[int, ...], quantile: float, expected: float
) -> None:
    assert latency_quantile(EDGES, 100, slower, quantile) == pytest.approx(expected)


def test_without_requests_or_measurements_there_is_no_quantile() -> None:
    assert latency_quantile(EDGES, 0, (0, 0, 0), 0.99) is None
    assert latency_quantile(EDGES, 5, (), 0.99) is None
    assert latency_quantile((), 5, (), 0.99) is None


def test_every_interval_is_a_point_with_both_arms_and_the_evidence_after_it() -> None:
    curve = after(Curve(), 0, Interval(canary=arm(50, 2), stable=arm(500), edges=EDGES))
    document = after(curve, 1, Interval(canary=ArmCounts(), stable=arm(500), edges=EDGES)).document()
    assert list(document.until) == [0.0, 1.0]
    assert (document.canary.requests, document.canary.errors) == ((100, 0), (4, 0))
    assert list(document.canary.p99) == [0.3, None]
    assert list(document.log_harm["errors"]) == pytest.approx([0.0, 0.6931])
    assert document.log_health == {"errors": (2.0, 2.0)}, "the hard gate gathers no evidence of health"


def test_pooled_latencies_are_a_mean_by_requests() -> None:
    curve = Curve(stride=3)
    for index, interval in enumerate(
        (
            Interval(canary=arm(50), stable=ArmCounts(), edges=EDGES),
            Interval(canary=arm(150, slower=(300, 3, 0)), stable=ArmCounts(), edges=(0.4, 0.8, 1.6)),
            Interval(canary=ArmCounts(), stable=ArmCounts(), edges=EDGES),
        )
    ):
        curve = after(curve, index, interval)
    document = curve.document()
    assert list(document.canary.p99) == pytest.approx([(0.3 * 100 + 1.2 * 300) / 400])
    assert list(document.stable.p99) == [None]


def test_a_long_stage_pools_intervals_and_loses_no_request() -> None:
    curve = Curve()
    number = 5 * POINTS + 3
    for index in range(number):
        curve = after(curve, index, Interval(canary=arm(50, 1), stable=arm(500), edges=EDGES))
    document = curve.document()
    assert POINTS / 2 <= len(document.until) <= POINTS
    assert sum(document.canary.requests) == 100 * number
    assert sum(document.canary.errors) == 2 * number
    assert document.until[-1] == number - 1
    assert set(document.canary.p99) == {0.3}
