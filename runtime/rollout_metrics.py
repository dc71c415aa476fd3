"""The instance's Prometheus series of requests, generations and candidates.

Series are born at zero, those of requests when a generation is installed, so that no first sample is
missed. A generation's go five minutes after its disposal, so that the final counts are still scraped,
or earlier when many generations come and go.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from torch import Tensor

from runtime.generation_holder import Generation
from runtime.pause import PausePhase
from runtime.scoring import ScoreCollector, ScoreCounts, ScoringArchitecture
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import CandidatePhase

_logger = logging.getLogger(__name__)

CODES = (200, 400, 499, 500, 503, 504)
"""499: the client was gone before its answer. 504: the answer's time was up."""
REASONS = (
    "draining",
    "invalid",
    "no_memory",
    "not_serving",
    "queue_full",
    "too_large",
    "too_late",
    "too_slow",
)
"""Why a request was refused before or instead of a model's answer."""

SERIES_KEPT_SECONDS = 300.0
MOST_DISPOSED_KEPT = 16
_GROWTH = 1.1
_SHORTEST, _LONGEST = 0.001, 10.0
_PHASE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_PAUSE_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


def latency_buckets() -> tuple[float, ...]:
    """Return bucket bounds from 1 ms to 10 s, each at most 1.1 times the one before."""
    steps = math.ceil(math.log(_LONGEST / _SHORTEST) / math.log(_GROWTH))
    ratio = (_LONGEST / _SHORTEST) ** (1 / steps)
    return tuple(float(f"{_SHORTEST * ratio**step:.6g}") for step in range(steps + 1))


@dataclass(frozen=True)
class _Series:
    """The children of one generation, looked up once instead of by labels for every request."""

    labels: tuple[str, ...]
    codes: dict[int, Counter]
    duration: Histogram
    scoring: ScoringArchitecture | None
    scores: ScoreCounts


class RolloutMetrics:
    """Requests, generations and candidates of one instance, in a registry of their own.

    Request methods belong to the event loop's thread, `scored` to the executor's.
    """

    def __init__(
        self, *, service: Service, cohort: Cohort, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._identity = (service.model, service.environment, cohort.value)
        self._series: dict[int, _Series] = {}
        self._disposed: deque[tuple[float, Generation]] = deque()
        names = ["model", "environment", "cohort"]
        of_generation = [*names, "artifact", "revision"]
        self._requests = self._counter("requests", "Answers served.", [*of_generation, "code"])
        self._duration = self._histogram(
            "request_duration_seconds", "Queueing and execution.", of_generation, latency_buckets()
        )
        self._info = self._gauge(
            "generation_info", "Which generation stands for a revision.", [*of_generation, "generation"]
        )
        self._rejected = self._counter("rejected_requests", "Requests refused.", [*names, "reason"])
        self._phase = self._histogram(
            "artifact_phase_duration_seconds", "Phases of candidates.", [*names, "phase"], _PHASE_BUCKETS
        )
        self.registry.register(ScoreCollector(label_names=of_generation, current=self._scores))
        for reason in REASONS:
            self._rejected.labels(*self._identity, reason)
        for phase in (*CandidatePhase, *PausePhase):
            self._phase.labels(*self._identity, phase.value)
        self._create_own(names)

    def _create_own(self, names: list[str]) -> None:
        """Create the series that the instance has one of, whatever it serves."""
        own = self._identity
        self.unready = self._counter("unready_requests", "Refused, below the floor.", names).labels(*own)
        self.conflicts = self._counter("target_conflicts", "Targets refused.", names).labels(*own)
        self.unauthorised = self._counter("unauthorised_targets", "Targets refused.", names).labels(*own)
        self.cleanup_failures = self._counter("cleanup_failures", "Failed clean-ups.", names).labels(*own)
        self.sessions_active = self._gauge("sessions_active", "Streaming now.", names).labels(*own)
        self.queue_length = self._gauge("queue_length", "Requests waiting.", names).labels(*own)
        self.batch_size = self._histogram(
            "batch_size", "Requests per forward pass.", names, _BATCH_BUCKETS
        ).labels(*own)
        self.pause = self._histogram(
            "admission_pause_seconds", "Requests held back by swaps in place.", names, _PAUSE_BUCKETS
        ).labels(*own)
        self.desired_revision = self._gauge("desired_revision", "Accepted target.", names).labels(*own)
        self.actual_revision = self._gauge("actual_revision", "Serving revision.", names).labels(*own)
        self.target_mismatch = self._gauge("target_mismatch", "1 while they differ.", names).labels(*own)

    def installed(self, generation: Generation) -> None:
        """Create a generation's series at zero."""
        self.expire()
        labels = self._labels(generation)
        architecture = generation.loaded.architecture
        scoring = architecture if isinstance(architecture, ScoringArchitecture) else None
        self._series[generation.number] = _Series(
            labels=labels,
            codes={code: self._requests.labels(*labels, str(code)) for code in CODES},
            duration=self._duration.labels(*labels),
            scoring=scoring,
            scores=ScoreCounts(scoring.score_edges if scoring else ()),
        )
        self._info.labels(*labels, str(generation.number)).set(1)
        self.actual_revision.set(generation.revision)

    def answered(self, generation: Generation, code: int, seconds: float) -> None:
        """Count one answer and its latency in seconds."""
        series = self._series.get(generation.number)
        if series is None:
            # A stream whose client read so slowly that its generation's series have gone.
            return
        series.codes[code].inc()
        series.duration.observe(seconds)

    def scored(self, generation: Generation, out: Tensor) -> None:
        """Count the score of one answer, from its output rows; never raises."""
        series = self._series[generation.number]
        if series.scoring is None:
            return
        try:
            series.scores.add(series.scoring.score(out))
        except Exception:
            _logger.exception("the score of an answer could not be taken")

    def rejected(self, reason: str) -> None:
        """Count one request that no generation answered, under one of `REASONS`."""
        self._rejected.labels(*self._identity, reason).inc()

    def phase_ended(self, phase: str, seconds: float) -> None:
        """Record how long a candidate spent in a phase."""
        self._phase.labels(*self._identity, phase).observe(seconds)

    def disposed(self, generation: Generation) -> None:
        """Start the clock of a disposed generation's series. Safe from any thread."""
        self._disposed.append((self._clock(), generation))

    def expire(self) -> None:
        """Remove the series of generations disposed of long ago, and of all but the latest of them."""
        while self._disposed and self._is_expired(self._disposed[0][0]):
            _, generation = self._disposed.popleft()
            # A candidate that was never installed has none.
            if self._series.pop(generation.number, None) is not None:
                self._remove(generation)

    def render(self) -> bytes:
        """Return the Prometheus text exposition."""
        return generate_latest(self.registry)

    def _is_expired(self, disposed_at: float) -> bool:
        is_old = self._clock() - disposed_at >= SERIES_KEPT_SECONDS
        return is_old or len(self._disposed) > MOST_DISPOSED_KEPT

    def _scores(self) -> list[tuple[tuple[str, ...], ScoreCounts]]:
        series = list(self._series.values())
        return [(one.labels, one.scores) for one in series if one.scoring is not None]

    def _remove(self, generation: Generation) -> None:
        labels = self._labels(generation)
        for code in CODES:
            self._requests.remove(*labels, str(code))
        self._duration.remove(*labels)
        self._info.remove(*labels, str(generation.number))

    def _labels(self, generation: Generation) -> tuple[str, ...]:
        return (*self._identity, generation.target.artifact_id, str(generation.revision))

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"weightshift_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: list[str]) -> Gauge:
        return Gauge(f"weightshift_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: list[str], buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"weightshift_{name}", text, labels, buckets=buckets, registry=self.registry)
