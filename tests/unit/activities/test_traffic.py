"""What is known of a service's traffic before a release."""

import pytest

from activities.traffic import MeasuredTraffic, busiest
from tests.unit.activities.test_observation import SERVICE, START, WrittenSamples
from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval
from weightshift.errors import MetricsUnreachable


def stretch(requests: int, *, errors: int = 0, slow: int = 0) -> Interval:
    counts = InstanceCounts(requests=requests, errors=errors, slower=(requests, slow))
    arm = ArmCounts({"stable-0": counts}, fresh=True)
    return Interval(canary=ArmCounts(), stable=arm, edges=(0.1, 0.3), score_edges=())


def test_the_busiest_stretch_counts_but_not_the_one_in_which_traffic_began() -> None:
    silent = stretch(0)
    found = busiest([silent, stretch(900), stretch(100, errors=1, slow=50), stretch(40)], seconds=10)
    assert found is not None
    assert (found.requests_per_second, found.error_fraction) == (10.0, 0.01)
    assert found.in_flight == pytest.approx((100 * 0.1 + 50 * 0.2) / 10)


@pytest.mark.parametrize("intervals", [[], [stretch(0)], [stretch(0), stretch(5)], [stretch(5), stretch(0)]])
def test_too_little_is_nothing(intervals: list[Interval]) -> None:
    assert busiest(intervals, seconds=10) is None


async def test_traffic_is_what_stable_was_scraped_to_do() -> None:
    reader = WrittenSamples(good=25)
    found = await MeasuredTraffic(reader=reader, clock=lambda: START + 100).observe(
        SERVICE, stable_revision=7
    )
    assert found is not None
    assert found.requests_per_second == pytest.approx(50, rel=0.05), "two instances with 25 each"
    assert found.error_fraction == 0
    assert found.in_flight >= 50 * 0.5 * 0.1


async def test_another_revision_and_a_silent_prometheus_are_unknown_traffic() -> None:
    reader = WrittenSamples(good=25)
    traffic = MeasuredTraffic(reader=reader, clock=lambda: START + 100)
    assert await traffic.observe(SERVICE, stable_revision=6) is None
    reader.failure = MetricsUnreachable()
    assert await traffic.observe(SERVICE, stable_revision=7) is None
