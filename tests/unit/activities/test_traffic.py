"""What is known of a service's traffic before a release."""

import pytest

from activities.traffic import MeasuredTraffic, Missing, Stretch, busiest
from tests.unit.activities.test_observation import SERVICE, START, WrittenSamples
from weightshift.analysis.series import Series
from weightshift.errors import MetricsUnreachable, QueryRefused


def test_the_busiest_stretch_counts_but_not_the_one_in_which_traffic_began() -> None:
    found = busiest([Stretch(0), Stretch(900), Stretch(100, errors=1, busy=20.0), Stretch(40)], seconds=10)
    assert found is not None
    assert (found.requests_per_second, found.error_fraction, found.in_flight) == (10.0, 0.01, 2.0)


@pytest.mark.parametrize("stretches", [[], [Stretch(0)], [Stretch(0), Stretch(5)], [Stretch(5), Stretch(0)]])
def test_too_little_is_nothing(stretches: list[Stretch]) -> None:
    assert busiest(stretches, seconds=10) is None


async def test_traffic_is_what_stable_was_scraped_to_do() -> None:
    reader = WrittenSamples(good=25)
    found = await MeasuredTraffic(reader=reader, clock=lambda: START + 100).observe(
        SERVICE, stable_revision=7
    )
    assert found is not None
    assert found.requests_per_second == pytest.approx(50, rel=0.05), "two instances with 25 each"
    assert found.error_fraction == 0
    assert found.in_flight == pytest.approx(50 * 0.08, rel=0.05)


async def test_another_revision_and_a_silent_prometheus_are_unknown_traffic() -> None:
    reader = WrittenSamples(good=25)
    traffic = MeasuredTraffic(reader=reader, clock=lambda: START + 100)
    assert await traffic.observe(SERVICE, stable_revision=6) is None
    reader.failure = MetricsUnreachable()
    assert await traffic.observe(SERVICE, stable_revision=7) is None


class Known:
    """A `MetricsReader` that finds something for the selectors that contain one of these texts."""

    scrape_interval = 1.0
    calibration = 60.0
    mesh_errors = ""

    def __init__(self, *texts: str) -> None:
        self.failure: MetricsUnreachable | QueryRefused | None = None
        self._texts = texts

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        if self.failure is not None:
            raise self.failure
        return (Series({}, ((end, 1.0),)),) if any(text in selector for text in self._texts) else ()


@pytest.mark.parametrize(
    ("template", "lack"),
    [
        ('carts_total{revision="$revision"}', None),
        ('carts_total{revision="$revision",cohort="stabel"}', Missing.SERIES),
        ('cards_total{revision="$revision"}', Missing.COUNTER),
        ('{__name__="cards_total",revision="$revision"}', Missing.SERIES),
    ],
)
async def test_what_a_business_gates_selector_lacks(template: str, lack: Missing | None) -> None:
    reader = Known('carts_total{revision="7"}[', "group(carts_total)[2000ms:1000ms]")
    traffic = MeasuredTraffic(reader=reader, clock=lambda: START)
    assert await traffic.missing(SERVICE, template, stable_revision=7) is lack
    reader.failure = MetricsUnreachable()
    assert await traffic.missing(SERVICE, template, stable_revision=7) is None


async def test_a_refused_selector_is_no_missing_one_and_no_unknown_traffic() -> None:
    reader = Known()
    reader.failure = QueryRefused("Prometheus refuses the query: 1:9: parse error")
    traffic = MeasuredTraffic(reader=reader, clock=lambda: START)
    with pytest.raises(QueryRefused, match="1:9"):
        await traffic.missing(SERVICE, 'carts_total{revision="$revision"} by', stable_revision=7)
    assert await traffic.observe(SERVICE, stable_revision=7) is None
