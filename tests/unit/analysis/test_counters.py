import math

import pytest

from weightshift.analysis.counters import ArmRevisions, Counts, RawSamples
from weightshift.analysis.queries import business_selector, range_selector, read_matrix
from weightshift.analysis.samples import Interval
from weightshift.analysis.series import CumulativeCounter, Gauge, Series, SeriesTable
from weightshift.contracts.identity import Cohort, Service


def series(samples: list[tuple[float, float]], **labels: str) -> Series:
    return Series(labels, tuple(samples))


def counter(samples: list[tuple[float, float]], born_after: float = 3.0) -> CumulativeCounter:
    table = SeriesTable(CumulativeCounter)
    table.add([series(samples)], born_after=born_after)
    ((_, one),) = table.of("", "")[""]
    return one


def interval_of(raw: RawSamples, start: float, end: float) -> Interval:
    counts = Counts(ArmRevisions(canary=101, stable=100))
    counts.add(raw)
    return counts.interval(start, end)


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


def test_reads_that_overlap_count_every_sample_once() -> None:
    whole = [(1.0, 10.0), (2.0, 14.0), (3.0, 5.0), (4.0, 6.0), (5.0, 9.0)]
    one = counter(whole[:3], born_after=3.0)
    one.extend(tuple(whole[1:]))
    assert [one.between(1, end) for end in (2, 3, 4, 5)] == [4, 9, 10, 13]


def test_what_was_forgotten_does_not_change_later_intervals() -> None:
    one = counter([(1, 10), (2, 14), (4, 20)])
    one.forget(3)
    one.extend(((5, 21),))
    assert [one.between(3, end) for end in (4, 5)] == [6, 7]
    assert not one.has_sample(2.5, 3)


def test_a_series_that_a_later_read_finds_first_was_born_since() -> None:
    table = SeriesTable(CumulativeCounter)
    table.add([series([(1, 40)], instance="old")], born_after=3.0)
    table.add([series([(1, 40), (2, 41)], instance="old"), series([(2, 7)], instance="new")], born_after=-1)
    assert {name: one.between(0, 2) for name, ((_, one),) in table.of("", "").items()} == {"old": 1, "new": 7}


def test_a_gauge_keeps_what_is_newer() -> None:
    gauge = Gauge(born_inside=False)
    gauge.extend(((1, 0.9), (2, 0.4)))
    gauge.extend(((2, 0.8), (3, 0.5)))
    assert [gauge.highest(0, 3), gauge.highest(1, 3), gauge.highest(3, 4)] == [0.9, 0.5, None]
    gauge.forget(1)
    assert gauge.highest(0, 3) == 0.5


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
    interval = interval_of(raw, 0, 2)
    assert interval.edges == (0.1, 0.2)
    canary = interval.canary.instances["canary-0"]
    assert (canary.requests, canary.errors, canary.slower) == (11, 2, (7, 2))
    assert interval.stable.requests == 100
    assert interval.canary.fresh
    assert interval.stable.fresh


GROWING = [(0.0, 0.0), (1.0, 5.0), (2.0, 9.0)]


def test_an_interval_counts_rejections_scores_and_memory_of_each_instance() -> None:
    canary = {"cohort": "canary", "instance": "canary-0"}
    raw = RawSamples(
        requests=(requests("canary", 101, "canary-0", "200", GROWING),),
        durations=(),
        born_after=3.0,
        rejected=(
            series([(0, 1), (2, 4)], **canary, reason="draining"),
            series([(0, 0), (2, 9)], cohort="stable"),
        ),
        scores=tuple(
            series([(0, 0), (2, count)], **canary, revision="101", le=le)
            for le, count in (("0.5", 4), ("+Inf", 9))
        ),
        memory=(series([(0, 0.9), (1, 0.5), (2, 0.7), (2, math.nan)], **canary),),
    )
    interval = interval_of(raw, 0, 2)
    one = interval.canary.instances["canary-0"]
    assert (interval.score_edges, one.scored, one.scores_above) == ((0.5,), 9, (5,))
    assert (one.rejected, one.memory) == (3, 0.7)


def carts(revision: str | None, value: float) -> Series:
    labels = {} if revision is None else {"revision": revision}
    return series([(0, 0), (2, value)], instance="shop-0", **labels)


def business(bad: tuple[Series, ...], total: tuple[Series, ...]) -> tuple[bool, bool]:
    raw = RawSamples((), (), 3.0, business={"carts": (bad, total)})
    interval = interval_of(raw, 0, 2)
    return "carts" in interval.canary.business, "carts" in interval.stable.business


def test_a_business_gate_counts_only_series_of_the_revision() -> None:
    both = (carts("101", 3), carts("100", 5)), (carts("101", 30), carts("100", 50))
    assert business(*both) == (True, True)
    assert business((carts(None, 3), carts("100", 5)), (carts(None, 30), carts("100", 50))) == (False, True)
    assert business((carts("101", 3),), ()) == (False, False)
    assert business((), (carts("101", 30),)) == (False, False)


def test_what_counted_while_its_query_was_refused_is_no_event_of_the_next_interval() -> None:
    counts = Counts(ArmRevisions(canary=101, stable=100))
    counts.add(RawSamples((), (), 3.0, refused={"carts": "a parse error"}))
    seen = series([(12, 1_000)], instance="shop-0", revision="101")
    counts.add(RawSamples((), (), -math.inf, business={"carts": ((seen,), (seen,))}))
    assert counts.interval(10, 20).canary.business["carts"].total_requests == 0


def errors_of(mesh: list[tuple[float, float]], instance: list[tuple[float, float]]) -> list[int]:
    """The canary's unseen errors in three intervals of 10 s, scraped every 5 s."""
    counts = Counts(ArmRevisions(canary=101, stable=100), scrape_interval=5.0)
    seen = requests("canary", 101, "canary-0", "500", instance)
    failed = series(mesh, envoy_cluster_name="canary")
    counts.add(RawSamples((seen,), (), 3.0, mesh_errors={"canary": (failed,)}))
    found = []
    for start in (20.0, 30.0, 40.0):
        found.append(counts.interval(start, start + 10).canary.unseen_errors)
        counts.forget(start + 10)
    assert counts.interval(40.0, 50.0).stable.unseen_errors == 0
    return found


def growing(rate: float, *, late: float = 0.0) -> list[tuple[float, float]]:
    return [(at, max(0.0, at - 20 - late) * rate) for at in range(0, 55, 5)]


def test_what_fails_on_the_way_to_an_instance_is_counted_by_the_mesh_alone() -> None:
    assert errors_of(mesh=growing(4), instance=growing(0)) == [20, 40, 40]


@pytest.mark.parametrize("late", [-5.0, 0.0, 5.0])
def test_what_an_instance_counted_too_is_not_unseen_whenever_it_was_scraped(late: float) -> None:
    assert errors_of(mesh=growing(4, late=late), instance=growing(4)) == [0, 0, 0]


def test_what_the_mesh_does_not_count_takes_nothing_away() -> None:
    assert errors_of(mesh=growing(0), instance=growing(4)) == [0, 0, 0]


def test_an_interval_without_a_scrape_is_not_fresh() -> None:
    raw = RawSamples((requests("canary", 101, "canary-0", "200", [(0, 5)]),), (), 3.0)
    interval = interval_of(raw, 1, 2)
    assert not interval.canary.fresh
    assert not interval.stable.fresh


SERVICE = Service(model="ranker", environment="prod")


def test_query_names_exactly_the_revisions() -> None:
    assert range_selector("m", SERVICE, (100, 101), 12.5) == (
        'm{model="ranker",environment="prod",revision=~"100|101"}[12500ms]'
    )


def test_a_query_for_some_edges_asks_for_the_total_too() -> None:
    selector = range_selector("m", SERVICE, (), 1, edges=(0.025, 1.0))
    assert selector == 'm{model="ranker",environment="prod",le=~"0.025|1|1.0|[+]Inf"}[1000ms]'


def test_a_business_selector_is_filled_from_what_is_measured() -> None:
    selector = business_selector('c{r="$revision",m="$model",k="$cohort"}', SERVICE, Cohort.CANARY, 101, 2)
    assert selector == 'c{r="101",m="ranker",k="canary"}[2000ms]'


def test_an_answer_of_another_shape_is_an_error() -> None:
    assert read_matrix([{"metric": {"a": "b"}, "values": [[1, "2"]]}]) == (Series({"a": "b"}, ((1.0, 2.0),)),)
    with pytest.raises(ValueError, match="range vector"):
        read_matrix([{"metric": {}, "value": [1, "2"]}])
    with pytest.raises(ValueError, match="range vector"):
        read_matrix([{"metric": "none", "values": [[1, "2"]]}])
