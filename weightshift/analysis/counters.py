"""From raw counter samples to counts per interval.

Works on the samples as scraped, with their own timestamps, never on `rate()` or `increase()`, which
extrapolate and miss what a series counted before its second sample.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weightshift.analysis.samples import ArmCounts, BadCounts, InstanceCounts, Interval, bounded


@dataclass(frozen=True)
class Series:
    """One counter as scraped: labels, and (unix seconds, value) in time order."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class RawSamples:
    """Everything read for one judgement; what no gate asks for is empty.

    `business` holds the series of each business gate by its name: bad events, and all events.

    A series whose first sample is later than `born_after` (unix seconds) was born inside the range; the
    reader leaves at least two scrape intervals between the start of the range and that moment.
    """

    requests: tuple[Series, ...]
    durations: tuple[Series, ...]
    born_after: float
    rejected: tuple[Series, ...] = ()
    scores: tuple[Series, ...] = ()
    memory: tuple[Series, ...] = ()
    business: Mapping[str, tuple[tuple[Series, ...], tuple[Series, ...]]] = field(default_factory=dict)


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
        self._scores = _by_arm_and_instance(raw.scores, raw.born_after)
        self._rejected = _by_arm_and_instance(raw.rejected, raw.born_after)
        self._business = BusinessCounts(raw)
        self._memory = raw.memory
        self._edges = _edges(raw.durations)
        self._score_edges = _edges(raw.scores)

    def interval(self, start: float, end: float) -> Interval:
        """Count both arms over one stretch of time (unix seconds)."""
        return Interval(
            canary=self._arm("canary", start, end),
            stable=self._arm("stable", start, end),
            edges=self._edges,
            score_edges=self._score_edges,
        )

    def _arm(self, cohort: str, start: float, end: float) -> ArmCounts:
        revision = self._arms[cohort]
        instances = self._requests.get((cohort, revision), {})
        fresh = any(
            counter.has_sample(start, end) for counters in instances.values() for _, counter in counters
        )
        return ArmCounts(
            {name: self._instance(cohort, name, start, end) for name in instances},
            fresh=fresh,
            business=self._business.between(revision, start, end),
        )

    def _instance(self, cohort: str, name: str, start: float, end: float) -> InstanceCounts:
        key = (cohort, self._arms[cohort])
        requests = self._requests[key][name]
        errors = [(labels, one) for labels, one in requests if _is_error(labels.get("code", ""))]
        _, slower = _above(self._durations.get(key, {}).get(name, []), self._edges, start, end)
        scored, above = _above(self._scores.get(key, {}).get(name, []), self._score_edges, start, end)
        # A refused request reached no generation, so its series names no revision.
        rejected = self._rejected.get((cohort, ""), {}).get(name, [])
        return InstanceCounts(
            requests=_total(requests, start, end),
            errors=_total(errors, start, end),
            slower=slower,
            rejected=_total(rejected, start, end),
            scored=scored,
            scores_above=above,
            memory=_highest(self._memory, cohort, name, start, end),
        )


class BusinessCounts:
    """The callers' own counters by revision; a series without a revision belongs to neither arm."""

    def __init__(self, raw: RawSamples) -> None:
        self._gates = {
            gate: (_by_revision(bad, raw.born_after), _by_revision(total, raw.born_after))
            for gate, (bad, total) in raw.business.items()
        }

    def between(self, revision: str, start: float, end: float) -> Mapping[str, BadCounts]:
        """Count the events of every gate that has all its series for this revision, freshly scraped."""
        counted = {}
        for gate, (bad, total) in self._gates.items():
            of_revision = total.get(revision, {})
            fresh = any(one.has_sample(start, end) for group in of_revision.values() for _, one in group)
            if fresh and revision in bad:
                counted[gate] = bounded(
                    tuple(_total(group, start, end) for group in of_revision.values()),
                    tuple(_total(bad[revision].get(name, []), start, end) for name in of_revision),
                )
        return counted


def _above(
    counters: LabelledCounters, edges: tuple[float, ...], start: float, end: float
) -> tuple[int, tuple[int, ...]]:
    """Return how many observations a histogram counted, and how many of them above each edge."""
    within = {float(labels["le"]): counter.between(start, end) for labels, counter in counters}
    measured = within.get(math.inf, 0)
    return measured, tuple(max(0, measured - within.get(edge, 0)) for edge in edges)


def _total(counters: LabelledCounters, start: float, end: float) -> int:
    return sum(counter.between(start, end) for _, counter in counters)


def _highest(series: Iterable[Series], cohort: str, instance: str, start: float, end: float) -> float | None:
    """Return the largest sample of an instance's gauge in the interval, None without a finite one."""
    samples = [
        value
        for one in series
        if one.labels.get("cohort") == cohort and one.labels.get("instance") == instance
        for at, value in one.samples
        if start < at <= end and math.isfinite(value)
    ]
    return max(samples, default=None)


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


def _by_revision(series: Iterable[Series], born_after: float) -> dict[str, dict[str, LabelledCounters]]:
    grouped: dict[str, dict[str, LabelledCounters]] = {}
    for (_, revision), by_instance in _by_arm_and_instance(series, born_after).items():
        for name, counters in by_instance.items():
            grouped.setdefault(revision, {}).setdefault(name, []).extend(counters)
    return grouped


def _edges(histogram: Iterable[Series]) -> tuple[float, ...]:
    return tuple(sorted({float(one.labels["le"]) for one in histogram} - {math.inf}))


def _is_error(code: str) -> bool:
    return code.startswith("5")
