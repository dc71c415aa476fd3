import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor

from runtime.architectures import Ranker
from runtime.generation_holder import Generation
from runtime.memory_use import MemoryUse
from runtime.pause import PausePhase
from runtime.process_metrics import ProcessMetrics
from runtime.rollout_metrics import (
    MOST_DISPOSED_KEPT,
    REASONS,
    SERIES_KEPT_SECONDS,
    RolloutMetrics,
    latency_buckets,
)
from runtime.scoring import signed_edges
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import CandidatePhase

SERVICE = Service(model="ranker", environment="test")
SCORES = "weightshift_prediction_score_bucket +Inf"
MakeGeneration = Callable[..., Generation]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> RolloutMetrics:
    return RolloutMetrics(service=SERVICE, cohort=Cohort.STABLE, clock=clock)


def exported(metrics: RolloutMetrics, **labels: str) -> dict[str, float]:
    """Return the samples that carry these labels, by name and bucket limit where there is one."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        " ".join(filter(None, (sample.name, sample.labels.get("le")))): sample.value
        for family in families
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    }


def test_buckets_grow_by_at_most_a_tenth_from_a_millisecond_to_ten_seconds() -> None:
    buckets = latency_buckets()
    assert (buckets[0], buckets[-1]) == (0.001, 10.0)
    assert all(1 < following / bound <= 1.1 for bound, following in pairwise(buckets))


def test_series_of_a_disposed_generation_stay_five_minutes(
    metrics: RolloutMetrics, clock: Clock, make_generation: MakeGeneration
) -> None:
    old, new = make_generation(1), make_generation(2)
    metrics.installed(old)
    metrics.answered(old, 200, 0.002)
    metrics.scored(old, torch.ones(1))
    metrics.installed(new)
    metrics.disposed(old)
    clock.now = SERIES_KEPT_SECONDS - 1
    metrics.expire()
    assert exported(metrics, revision="1")[SCORES] == 1
    clock.now = SERIES_KEPT_SECONDS
    metrics.expire()
    assert exported(metrics, revision="1") == {}
    assert exported(metrics, revision="2") != {}


def test_however_fast_generations_come_and_go_their_series_are_few(
    metrics: RolloutMetrics, make_generation: MakeGeneration
) -> None:
    for revision in range(1, 4 * MOST_DISPOSED_KEPT):
        generation = make_generation(revision)
        metrics.installed(generation)
        metrics.disposed(generation)
    lines = metrics.render().decode().splitlines()
    infos = [line for line in lines if line.startswith("weightshift_generation_info{")]
    scores = [
        line
        for line in lines
        if line.startswith("weightshift_prediction_score_bucket{") and 'le="+Inf"' in line
    ]
    # The one just installed has been disposed of too, which the next one's installation will notice.
    assert MOST_DISPOSED_KEPT < len(infos) <= MOST_DISPOSED_KEPT + 1
    assert len(scores) == len(infos)


def test_an_answer_that_outlasts_its_series_is_no_failure(
    metrics: RolloutMetrics, clock: Clock, make_generation: MakeGeneration
) -> None:
    old = make_generation(1)
    metrics.installed(old)
    metrics.disposed(old)
    clock.now = SERIES_KEPT_SECONDS
    metrics.expire()
    metrics.answered(old, 200, SERIES_KEPT_SECONDS)
    assert exported(metrics, revision="1") == {}, "and brings none of them back"


def test_a_candidate_that_never_served_leaves_no_series(
    metrics: RolloutMetrics, clock: Clock, make_generation: MakeGeneration
) -> None:
    metrics.disposed(make_generation(1))
    clock.now = SERIES_KEPT_SECONDS
    metrics.expire()
    assert exported(metrics, revision="1") == {}


def test_every_series_is_born_at_zero(metrics: RolloutMetrics, make_generation: MakeGeneration) -> None:
    ProcessMetrics(registry=metrics.registry, service=SERVICE, cohort=Cohort.STABLE)
    metrics.installed(make_generation(1))
    for reason in REASONS:
        assert exported(metrics, reason=reason)["weightshift_rejected_requests_total"] == 0
    for phase in (*CandidatePhase, *PausePhase):
        assert exported(metrics, phase=phase)["weightshift_artifact_phase_duration_seconds_count"] == 0
    for kind in ("allocated", "reserved", "used", "limit"):
        assert exported(metrics, kind=kind)["weightshift_device_memory_bytes"] == 0
    samples = exported(metrics, model="ranker", environment="test", cohort="stable")
    assert {name for name, value in samples.items() if value != 0 and "_created" not in name} == {
        "weightshift_actual_revision",
        "weightshift_generation_info",
    }
    assert {
        "weightshift_queue_length",
        "weightshift_cleanup_failures_total",
        "weightshift_unready_requests_total",
        "weightshift_device_memory_used_ratio",
        "weightshift_event_loop_lag_seconds_count",
        "weightshift_generations_resident",
        "weightshift_oldest_retired_generation_age_seconds",
        SCORES,
        "weightshift_request_duration_seconds_count",
        "weightshift_requests_total",
        "weightshift_target_mismatch",
    } <= set(samples)


def test_scores_are_counted_up_to_each_edge(metrics: RolloutMetrics, make_generation: MakeGeneration) -> None:
    generation = make_generation(1)
    metrics.installed(generation)
    for scores in ([-1000.0], [0.0], [0.5, -3.0], [math.nan], [1e9]):
        metrics.scored(generation, torch.tensor(scores))
    counted = exported(metrics, revision="1")
    prefix = "weightshift_prediction_score_bucket"
    assert counted[f"{prefix} -100.0"] == 1
    assert counted[f"{prefix} -0.01"] == 1
    assert counted[f"{prefix} 0.0"] == 2
    assert counted[f"{prefix} 1.0"] == 3
    assert counted[f"{prefix} 100.0"] == 3
    assert counted[f"{prefix} +Inf"] == 4


def test_edges_rise_through_zero() -> None:
    edges = signed_edges(0.01, 100, per_decade=12)
    assert edges == Ranker.score_edges
    assert list(edges) == sorted(set(edges))
    assert (edges[0], edges[-1], len(edges)) == (-100, 100, 99)


def test_a_score_that_cannot_be_taken_is_no_failure_of_the_answer(
    metrics: RolloutMetrics, make_generation: MakeGeneration
) -> None:
    class Failing(Ranker):
        def score(self, out: Tensor) -> float:
            raise KeyError

    generation = make_generation(1)
    generation.loaded = replace(generation.loaded, architecture=Failing())
    metrics.installed(generation)
    metrics.scored(generation, torch.ones(1))
    assert exported(metrics, revision="1")[SCORES] == 0


def test_an_architecture_without_scores_has_no_such_series(
    metrics: RolloutMetrics, make_generation: MakeGeneration
) -> None:
    generation = make_generation(1)
    plain = type("Plain", (), {"name": "plain"})()
    generation.loaded = replace(generation.loaded, architecture=plain)
    metrics.installed(generation)
    metrics.scored(generation, torch.ones(1))
    assert SCORES not in exported(metrics, revision="1")


def test_memory_and_retired_generations_are_read(
    metrics: RolloutMetrics, make_generation: MakeGeneration
) -> None:
    process = ProcessMetrics(registry=metrics.registry, service=SERVICE, cohort=Cohort.STABLE)
    old, new = make_generation(1), make_generation(2)
    old.retire()
    assert old.retired_at is not None
    old.retired_at -= 60
    process.read(MemoryUse(allocated=1, reserved=2, used=30, limit=40), [old, new])
    samples = exported(metrics, cohort="stable")
    assert samples["weightshift_device_memory_used_ratio"] == 0.75
    assert samples["weightshift_generations_resident"] == 2
    assert 60 <= samples["weightshift_oldest_retired_generation_age_seconds"] < 70
    assert exported(metrics, kind="used")["weightshift_device_memory_bytes"] == 30
    process.read(MemoryUse(allocated=1, reserved=2, used=30, limit=40), [new])
    assert exported(metrics)["weightshift_oldest_retired_generation_age_seconds"] == 0
