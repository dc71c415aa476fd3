import math

import pytest

from weightshift.analysis.counters import ArmRevisions, Counts, CumulativeCounter, RawSamples, Series
from weightshift.analysis.queries import range_selector, read_matrix
from weightshift.contracts.identity import Service


def series(samples: list[tuple[float, float]], **labels: str) -> Series:
    return Series(labels, tuple(samples))


def counter(samples: list[tuple[float, float]], born_after: float = 3.0) -> CumulativeCounter:
    return CumulativeCounter(series(samples), born_after=born_after)


def test_difference_of_a_plain_counter() -> None:
    assert counter([(1, 10), (2, 14), (3, 20)]).between(1, 3) == 10


def test_a_reset_counts_what_came_after_it() -> None:
    assert counter([(1, 10), (2, 14), (3, 5), (4, 6)]).between(1, 4) == 10


def test_a_series_born_inside_the_range_counts_from_zero() -> None:
    assert counter([(10, 40), (11, 42)]).between(5, 11) == 42


def test_a_series_older_than_the_range_does_not() -> None:
    assert counter([(0.5, 40), (1.5, 42)]).between(0, 2) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_sample_is_as_good_as_none(value: float) -> None:
    one = counter([(1, 10), (2, value)])
    assert one.between(0, 2) == 0
    assert not one.has_sample(1, 2)


def requests(
    cohort: str, revision: int, instance: str, code: str, samples: list[tuple[float, float]]
) -> Series:
    return series(samples, cohort=cohort, revision=str(revision), instance=instance, code=code)


def test_an_interval_counts_each_arm_by_its_revision() -> None:
    raw = RawSamples(
        requests=(
            requests("canary", 101, "canary-0", "200", [(0, 0), (1, 5), (2, 9)]),
            requests("canary", 101, "canary-0", "500", [(0, 0), (1, 1), (2, 2)]),
            requests("canary", 99, "canary-0", "200", [(0, 70), (2, 90)]),
            requests("stable", 100, "stable-0", "200", [(0, 50), (2, 150)]),
        ),
        durations=tuple(
            series([(0, 0), (2, count)], cohort="canary", revision="101", instance="canary-0", le=le)
            for le, count in (("0.1", 4), ("0.2", 9), ("+Inf", 11))
        ),
        born_after=3.0,
    )
    interval = Counts(raw, ArmRevisions(canary=101, stable=100)).interval(0, 2)
    assert interval.edges == (0.1, 0.2)
    canary = interval.canary.instances["canary-0"]
    assert (canary.requests, canary.errors, canary.slower) == (11, 2, (7, 2))
    assert interval.stable.requests == 100
    assert interval.canary.fresh
    assert interval.stable.fresh


def test_an_interval_without_a_scrape_is_not_fresh() -> None:
    raw = RawSamples((requests("canary", 101, "canary-0", "200", [(0, 5)]),), (), 3.0)
    interval = Counts(raw, ArmRevisions(canary=101, stable=100)).interval(1, 2)
    assert not interval.canary.fresh
    assert not interval.stable.fresh


def test_query_names_exactly_the_revisions() -> None:
    service = Service(model="ranker", environment="prod")
    assert range_selector("m", service, (100, 101), 12.5) == (
        'm{model="ranker",environment="prod",revision=~"100|101"}[12500ms]'
    )


def test_an_answer_of_another_shape_is_an_error() -> None:
    assert read_matrix([{"metric": {"a": "b"}, "values": [[1, "2"]]}]) == (Series({"a": "b"}, ((1.0, 2.0),)),)
    with pytest.raises(ValueError, match="range vector"):
        read_matrix([{"metric": {}, "value": [1, "2"]}])
