"""From raw counter samples to counts per interval.

Works on the samples as scraped, with their own timestamps, never on `rate()` or `increase()`, which
extrapolate and miss what a series counted before its second sample.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval


@dataclass(frozen=True)
class Series:
    """One counter as scraped: labels, and (unix seconds, value) in time order."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RawSamples:
    """Everything read for one judgement.

    A series whose first sample is later than `born_after` (unix seconds) was born inside the range; the
    reader leaves at least two scrape intervals between the start of the range and that moment.
    """

    requests: tuple[Series, ...]
    durations: tuple[Series, ...]
    born_after: float


@dataclass(frozen=True)
class ArmRevisions:
    """Which revision each arm is expected to serve; other revisions belong to neither."""

    canary: int
    stable: int


class CumulativeCounter:
    """A counter made monotone: resets add what was counted since, a birth counts from zero."""

    def __init__(self, series: Series, *, born_after: float) -> None:
        finite = [(at, value) for at, value in series.samples if math.isfinite(value)]
        self._times = [at for at, _ in finite]
        self._totals: list[float] = []
        born_inside = bool(finite) and finite[0][0] > born_after
        total = finite[0][1] if born_inside else 0.0
        previous: float | None = None
        for _, value in finite:
            if previous is not None:
                total += value - previous if value >= previous else value
            self._totals.append(total)
            previous = value

    def at(self, moment: float) -> float:
        """Return the events counted up to `moment`, by the last sample at or before it."""
        index = bisect_right(self._times, moment) - 1
        return self._totals[index] if index >= 0 else 0.0

    def between(self, start: float, end: float) -> int:
        """Return the events between two moments."""
        return round(self.at(end) - self.at(start))

    def has_sample(self, start: float, end: float) -> bool:
        """Whether anything was scraped after `start` and up to `end`."""
        return bisect_right(self._times, end) > bisect_right(self._times, start)


LabelledCounters = list[tuple[Mapping[str, str], CumulativeCounter]]


class Counts:
    """Counters of both arms by instance, ready to be cut into intervals."""

    def __init__(self, raw: RawSamples, revisions: ArmRevisions) -> None:
        self._arms = {"canary": str(revisions.canary), "stable": str(revisions.stable)}
        self._requests = _by_arm_and_instance(raw.requests, raw.born_after)
        self._durations = _by_arm_and_instance(raw.durations, raw.born_after)
        self._edges = _edges(raw.durations)

    def interval(self, start: float, end: float) -> Interval:
        """Count both arms over one stretch of time (unix seconds)."""
        return Interval(
            canary=self._arm("canary", start, end),
            stable=self._arm("stable", start, end),
            edges=self._edges,
        )

    def _arm(self, cohort: str, start: float, end: float) -> ArmCounts:
        key = (cohort, self._arms[cohort])
        instances = self._requests.get(key, {})
        durations = self._durations.get(key, {})
        counted = {
            name: self._instance(counters, durations.get(name, []), start, end)
            for name, counters in instances.items()
        }
        fresh = any(
            counter.has_sample(start, end) for counters in instances.values() for _, counter in counters
        )
        return ArmCounts(counted, fresh=fresh)

    def _instance(
        self, requests: LabelledCounters, durations: LabelledCounters, start: float, end: float
    ) -> InstanceCounts:
        total = sum(counter.between(start, end) for _, counter in requests)
        errors = sum(
            counter.between(start, end) for labels, counter in requests if _is_error(labels.get("code", ""))
        )
        within = {float(labels["le"]): counter.between(start, end) for labels, counter in durations}
        measured = within.get(math.inf, 0)
        slower = tuple(max(0, measured - within.get(edge, 0)) for edge in self._edges)
        return InstanceCounts(requests=total, errors=errors, slower=slower)


def _by_arm_and_instance(
    series: Iterable[Series], born_after: float
) -> dict[tuple[str, str], dict[str, LabelledCounters]]:
    grouped: dict[tuple[str, str], dict[str, LabelledCounters]] = {}
    for one in series:
        key = (one.labels.get("cohort", ""), one.labels.get("revision", ""))
        by_instance = grouped.setdefault(key, {})
        counters = by_instance.setdefault(one.labels.get("instance", ""), [])
        counters.append((one.labels, CumulativeCounter(one, born_after=born_after)))
    return grouped


def _edges(durations: Iterable[Series]) -> tuple[float, ...]:
    return tuple(sorted({float(one.labels["le"]) for one in durations} - {math.inf}))


def _is_error(code: str) -> bool:
    return code.startswith("5")
