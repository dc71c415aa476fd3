"""What an architecture adds to its contract so that two models' outputs can be compared, and their counts."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from torch import Tensor

NAME = "weightshift_prediction_score"


@runtime_checkable
class ScoringArchitecture(Protocol):
    """An `Architecture` that tells one number of each answer, to be compared between artifacts.

    `score_edges` are at most 200 rising limits between which scores are counted. Keep them the same for
    every artifact of a service: counts between different limits cannot be compared.
    """

    score_edges: tuple[float, ...]

    def score(self, out: Tensor) -> float:
        """Return one request's score from its output rows; called for every answer, so be quick."""


def signed_edges(least: float, greatest: float, *, per_decade: int) -> tuple[float, ...]:
    """Return limits of falling and rising magnitude around zero, `per_decade` for each factor of ten."""
    steps = round(math.log10(greatest / least) * per_decade)
    rising = [float(f"{least * 10 ** (step / per_decade):.4g}") for step in range(steps + 1)]
    return (*(-edge for edge in reversed(rising)), 0.0, *rising)


class ScoreCounts:
    """How many scores of one generation lie up to each edge. One thread adds, any thread reads."""

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = tuple(edges)
        self._counts = [0] * (len(self._edges) + 1)
        self._sum = 0.0

    def add(self, score: float) -> None:
        """Count a score; one that is not finite says nothing and is left out."""
        if math.isfinite(score):
            self._counts[bisect_left(self._edges, score)] += 1
            self._sum += score

    @property
    def total(self) -> int:
        """How many scores were counted."""
        return sum(self._counts)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Put these counts into a metric family."""
        cumulative = accumulate(list(self._counts))
        limits = (*(str(edge) for edge in self._edges), "+Inf")
        family.add_metric(labels, list(zip(limits, cumulative, strict=True)), self._sum)


class ScoreCollector(Collector):
    """Exports the score counts that `current` returns, each with the values of `label_names`.

    The client library's own histogram has the same limits for every series of a name.
    """

    def __init__(
        self,
        *,
        label_names: Sequence[str],
        current: Callable[[], Iterable[tuple[Sequence[str], ScoreCounts]]],
    ) -> None:
        self._label_names = label_names
        self._current = current

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Return the one metric family there is."""
        family = HistogramMetricFamily(NAME, "One number of each answer.", labels=self._label_names)
        for labels, counts in self._current():
            counts.add_to(family, labels)
        yield family
