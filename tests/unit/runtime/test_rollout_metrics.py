from collections.abc import Callable
from itertools import pairwise

from runtime.generation_holder import Generation
from runtime.rollout_metrics import SERIES_KEPT_SECONDS, RolloutMetrics, latency_buckets
from weightshift.contracts.identity import Cohort, Service


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_buckets_grow_by_at_most_a_tenth_from_a_millisecond_to_ten_seconds() -> None:
    buckets = latency_buckets()
    assert (buckets[0], buckets[-1]) == (0.001, 10.0)
    assert all(1 < following / bound <= 1.1 for bound, following in pairwise(buckets))


def test_series_of_a_disposed_generation_stay_five_minutes(
    make_generation: Callable[..., Generation],
) -> None:
    clock = Clock()
    metrics = RolloutMetrics(
        service=Service(model="ranker", environment="test"), cohort=Cohort.STABLE, clock=clock
    )
    old, new = make_generation(1), make_generation(2)
    metrics.installed(old)
    metrics.answered(old, 200, 0.002)
    metrics.installed(new)
    metrics.disposed(old)
    clock.now = SERIES_KEPT_SECONDS - 1
    metrics.expire()
    assert b'revision="1"' in metrics.render()
    clock.now = SERIES_KEPT_SECONDS
    metrics.expire()
    exposition = metrics.render()
    assert b'revision="1"' not in exposition
    assert b'revision="2"' in exposition


def test_a_candidate_that_never_served_leaves_no_series(make_generation: Callable[..., Generation]) -> None:
    clock = Clock()
    metrics = RolloutMetrics(
        service=Service(model="ranker", environment="test"), cohort=Cohort.STABLE, clock=clock
    )
    metrics.disposed(make_generation(1))
    clock.now = SERIES_KEPT_SECONDS
    metrics.expire()
    assert b'revision="1"' not in metrics.render()
