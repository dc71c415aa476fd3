"""From raw counter samples to counts per interval.

Works on the samples as scraped, with their own timestamps, never on `rate()` or `increase()`, which
extrapolate and miss what a series counted before its second sample.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from weightshift.analysis.samples import ArmCounts, BadCounts, InstanceCounts, Interval, bounded
from weightshift.analysis.series import CumulativeCounter, Gauge, Labelled, Series, SeriesTable

LabelledCounters = Labelled[CumulativeCounter]


@dataclass(frozen=True)
class RawSamples:
    """Everything read at one time; what no gate asks for is empty.

    `business` holds the series of each business gate by its name: bad events, and all events; `refused`
    why the store does not let those of a gate be read.

    `mesh_errors` are the failures that the mesh itself counted, by cohort.

    A series that was not read before, and whose first sample is later than `born_after` (unix seconds), was
    born inside the range; a first reader leaves at least two scrape intervals between the start of the
    range and that moment.
    """

    requests: tuple[Series, ...]
    durations: tuple[Series, ...]
    born_after: float
    rejected: tuple[Series, ...] = ()
    scores: tuple[Series, ...] = ()
    memory: tuple[Series, ...] = ()
    business: Mapping[str, tuple[tuple[Series, ...], tuple[Series, ...]]] = field(default_factory=dict)
    mesh_errors: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArmRevisions:
    """Which revision each arm is expected to serve; other revisions belong to neither."""

    canary: int
    stable: int


class Counts:
    """Counters of both arms by instance, added to read by read, to be cut into intervals."""

    def __init__(self, revisions: ArmRevisions, *, scrape_interval: float = 0.0) -> None:
        self._scrape_interval = scrape_interval
        self._mesh = {cohort: SeriesTable(CumulativeCounter) for cohort in ("canary", "stable")}
        self._arms = {"canary": str(revisions.canary), "stable": str(revisions.stable)}
        self._requests = SeriesTable(CumulativeCounter)
        self._durations = SeriesTable(CumulativeCounter)
        self._scores = SeriesTable(CumulativeCounter)
        self._rejected = SeriesTable(CumulativeCounter)
        self._memory = SeriesTable(Gauge)
        self._business: dict[str, BusinessCounts] = {}
        self._refused: Mapping[str, str] = {}
        self._edges: tuple[float, ...] = ()
        self._score_edges: tuple[float, ...] = ()

    def add(self, raw: RawSamples) -> None:
        """Add what was read; samples that are known already change nothing."""
        self._requests.add(raw.requests, born_after=raw.born_after)
        if self._durations.add(raw.durations, born_after=raw.born_after):
            self._edges = _edges(self._durations)
        if self._scores.add(raw.scores, born_after=raw.born_after):
            self._score_edges = _edges(self._scores)
        self._rejected.add(raw.rejected, born_after=raw.born_after)
        self._memory.add(raw.memory, born_after=raw.born_after)
        for cohort, series in raw.mesh_errors.items():
            self._mesh[cohort].add(series, born_after=raw.born_after)
        for gate, (bad, total) in raw.business.items():
            counts = self._business.setdefault(gate, BusinessCounts())
            # What counted while its query was refused was not born since then.
            born_after = math.inf if gate in self._refused else raw.born_after
            counts.bad.add(bad, born_after=born_after)
            counts.total.add(total, born_after=born_after)
        self._refused = raw.refused

    def forget(self, before: float) -> None:
        """Drop what intervals that start at `before` (unix seconds) or later do not need."""
        before -= 2 * self._scrape_interval
        for mesh in self._mesh.values():
            mesh.forget(before)
        for table in (self._requests, self._durations, self._scores, self._rejected, self._memory):
            table.forget(before)
        for counts in self._business.values():
            counts.bad.forget(before)
            counts.total.forget(before)

    def interval(self, start: float, end: float) -> Interval:
        """Count both arms over one stretch of time (unix seconds)."""
        return Interval(
            canary=self._arm("canary", start, end),
            stable=self._arm("stable", start, end),
            edges=self._edges,
            score_edges=self._score_edges,
            refused=self._refused,
        )

    def _arm(self, cohort: str, start: float, end: float) -> ArmCounts:
        revision = self._arms[cohort]
        instances = self._requests.of(cohort, revision)
        business = {
            gate: counted
            for gate, counts in self._business.items()
            if gate not in self._refused and (counted := counts.between(revision, start, end)) is not None
        }
        return ArmCounts(
            {name: self._instance(cohort, name, start, end) for name in instances},
            fresh=_is_fresh(instances, start, end),
            business=business,
            unseen_errors=self._unseen_errors(cohort, start, end),
        )

    def _unseen_errors(self, cohort: str, start: float, end: float) -> int:
        """Count the failures that the mesh saw and no instance did: they failed on the way.

        The two are scraped at other moments, so what the mesh counted is looked for in a scrape before and
        after it too.
        """
        slack = self._scrape_interval
        seen_by_mesh = sum(one.between(start - slack, end - slack) for one in self._mesh[cohort].tracks)
        by_instance = self._requests.of(cohort, self._arms[cohort])
        counted = sum(
            one.between(start - 2 * slack, end)
            for series in by_instance.values()
            for labels, one in series
            if _is_error(labels.get("code", ""))
        )
        return max(0, seen_by_mesh - counted)

    def _instance(self, cohort: str, name: str, start: float, end: float) -> InstanceCounts:
        revision = self._arms[cohort]
        requests = self._requests.of(cohort, revision)[name]
        errors = [(labels, one) for labels, one in requests if _is_error(labels.get("code", ""))]
        durations = self._durations.of(cohort, revision).get(name, [])
        scores = self._scores.of(cohort, revision).get(name, [])
        _, slower = _above(durations, self._edges, start, end)
        scored, above = _above(scores, self._score_edges, start, end)
        # A refused request reached no generation, so its series names no revision; nor does a device's.
        rejected = self._rejected.of(cohort, "").get(name, [])
        memory = [gauge.highest(start, end) for _, gauge in self._memory.of(cohort, "").get(name, [])]
        return InstanceCounts(
            requests=_total(requests, start, end),
            errors=_total(errors, start, end),
            slower=slower,
            rejected=_total(rejected, start, end),
            scored=scored,
            scores_above=above,
            memory=max((used for used in memory if used is not None), default=None),
        )


class BusinessCounts:
    """A gate on the callers' own counters; a series without a revision belongs to neither arm."""

    def __init__(self) -> None:
        self.bad = SeriesTable(CumulativeCounter)
        self.total = SeriesTable(CumulativeCounter)

    def between(self, revision: str, start: float, end: float) -> BadCounts | None:
        """Count the events; None unless there are all series for this revision, freshly scraped."""
        bad, total = self.bad.of_revision(revision), self.total.of_revision(revision)
        if not bad or not _is_fresh(total, start, end):
            return None
        return bounded(
            tuple(_total(group, start, end) for group in total.values()),
            tuple(_total(bad.get(name, []), start, end) for name in total),
        )


def _is_fresh(instances: Mapping[str, LabelledCounters], start: float, end: float) -> bool:
    return any(one.has_sample(start, end) for counters in instances.values() for _, one in counters)


def _above(
    counters: LabelledCounters, edges: tuple[float, ...], start: float, end: float
) -> tuple[int, tuple[int, ...]]:
    """Return how many observations a histogram counted, and how many of them above each edge."""
    within = {float(labels["le"]): counter.between(start, end) for labels, counter in counters}
    measured = within.get(math.inf, 0)
    return measured, tuple(max(0, measured - within.get(edge, 0)) for edge in edges)


def _total(counters: LabelledCounters, start: float, end: float) -> int:
    return sum(counter.between(start, end) for _, counter in counters)


def _edges(histogram: SeriesTable[CumulativeCounter]) -> tuple[float, ...]:
    return tuple(sorted({float(edge) for edge in histogram.label_values("le")} - {math.inf}))


def _is_error(code: str) -> bool:
    return code.startswith("5")
