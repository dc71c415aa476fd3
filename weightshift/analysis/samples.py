"""What a judgement works on: counts per instance, per arm, per interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property


@dataclass(frozen=True)
class InstanceCounts:
    """One instance in one interval.

    `slower[i]` counts the requests that took longer than the i-th latency edge of the interval, and
    `scores_above[i]` the `scored` outputs above its i-th score edge. `memory` is the largest fraction of
    the device's memory in use, None where nothing was measured.
    """

    requests: int
    errors: int
    slower: tuple[int, ...]
    rejected: int = 0
    scored: int = 0
    scores_above: tuple[int, ...] = ()
    memory: float | None = None


@dataclass(frozen=True)
class BadCounts:
    """Requests and bad events of one arm in one interval, per instance, under one definition of bad."""

    requests: tuple[int, ...]
    bad: tuple[int, ...]

    @property
    def total_requests(self) -> int:
        """Requests of the whole arm."""
        return sum(self.requests)

    @property
    def total_bad(self) -> int:
        """Bad events of the whole arm."""
        return sum(self.bad)

    def complement(self) -> "BadCounts":
        """Return the same requests with good and bad exchanged."""
        return BadCounts(self.requests, tuple(n - b for n, b in zip(self.requests, self.bad, strict=True)))


@dataclass(frozen=True)
class ArmCounts:
    """All instances of one arm in one interval; `fresh` is False when nothing was scraped in it.

    `business` holds the events of each business gate that has series of this arm's revision, and
    `unseen_errors` are requests that failed on the way to an instance.
    """

    instances: Mapping[str, InstanceCounts] = field(default_factory=dict)
    fresh: bool = False
    business: Mapping[str, BadCounts] = field(default_factory=dict)
    unseen_errors: int = 0

    @cached_property
    def requests(self) -> int:
        """Requests of the whole arm."""
        return sum(counts.requests for counts in self.instances.values())

    def errors(self) -> BadCounts:
        """Count failed requests as bad."""
        return self._bad(tuple(counts.errors for counts in self.instances.values()))

    def failures(self) -> BadCounts:
        """Count as bad what failed in an instance, and what failed on the way to one."""
        counted = self.errors()
        if not self.unseen_errors:
            return counted
        return BadCounts((*counted.requests, self.unseen_errors), (*counted.bad, self.unseen_errors))

    def slower_than(self, edge: int) -> BadCounts:
        """Count requests slower than the edge with this index as bad."""
        return self._bad(tuple([counts.slower[edge] for counts in self.instances.values()]))

    def rejections(self) -> BadCounts:
        """Count requests that were refused before a model saw them as bad."""
        offered = tuple(counts.requests + counts.rejected for counts in self.instances.values())
        return BadCounts(offered, tuple(counts.rejected for counts in self.instances.values()))

    def scores_above(self, edge: int) -> BadCounts:
        """Count outputs above the score edge with this index as bad."""
        scoring = [counts for counts in self.instances.values() if counts.scores_above]
        return bounded(
            tuple(counts.scored for counts in scoring), tuple(counts.scores_above[edge] for counts in scoring)
        )

    @cached_property
    def totals_slower(self) -> tuple[int, ...]:
        """Requests of the whole arm that took longer than each latency edge."""
        return _sums([counts.slower for counts in self.instances.values()])

    @cached_property
    def totals_above(self) -> tuple[int, ...]:
        """Outputs of the whole arm above each score edge."""
        return _sums([counts.scores_above for counts in self.instances.values()])

    def _bad(self, bad: tuple[int, ...]) -> BadCounts:
        return bounded(self._requests_by_instance, bad)

    @cached_property
    def _requests_by_instance(self) -> tuple[int, ...]:
        return tuple(counts.requests for counts in self.instances.values())

    def at_edges(self, kept: Sequence[int]) -> "ArmCounts":
        """Return the same counts with the latency edges of these indices only."""
        return replace(
            self,
            instances={
                name: replace(counts, slower=tuple(counts.slower[index] for index in kept))
                for name, counts in self.instances.items()
            },
        )

    def plus(self, other: "ArmCounts") -> "ArmCounts":
        """Add a later interval of the same arm, instance by instance.

        When its latency edges are others than before, the earlier counts are of no use and dropped.
        """
        if self._shapes() != other._shapes() and other.instances:
            return other
        names = {*self.instances, *other.instances}
        return ArmCounts(
            {name: _add(self.instances.get(name), other.instances.get(name)) for name in names},
            fresh=self.fresh or other.fresh,
        )

    def _shapes(self) -> set[tuple[int, int]]:
        return {(len(counts.slower), len(counts.scores_above)) for counts in self.instances.values()}


@dataclass(frozen=True)
class Interval:
    """Both arms over the same stretch of time.

    `edges` are latency limits in seconds and `score_edges` limits of the model's scores, both rising.
    `refused` says of business gates, by name, why nothing may be read for them.
    """

    canary: ArmCounts
    stable: ArmCounts
    edges: tuple[float, ...]
    score_edges: tuple[float, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def at_edges(self, edges: tuple[float, ...]) -> "Interval":
        """Return the same counts with some of the latency edges only."""
        kept = [self.edges.index(edge) for edge in edges]
        return replace(
            self, canary=self.canary.at_edges(kept), stable=self.stable.at_edges(kept), edges=edges
        )


def bounded(requests: tuple[int, ...], bad: tuple[int, ...]) -> BadCounts:
    """Pair counts of two series, which are read a moment apart: never more bad than all."""
    return BadCounts(requests, tuple(map(min, bad, requests)))


def _sums(columns: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(column for column in columns if column), strict=True)))


def _add(first: InstanceCounts | None, second: InstanceCounts | None) -> InstanceCounts:
    if first is None or second is None:
        return first or second or InstanceCounts(0, 0, ())
    return InstanceCounts(
        requests=first.requests + second.requests,
        errors=first.errors + second.errors,
        slower=tuple(a + b for a, b in zip(first.slower, second.slower, strict=True)),
        rejected=first.rejected + second.rejected,
        scored=first.scored + second.scored,
        scores_above=tuple(a + b for a, b in zip(first.scores_above, second.scores_above, strict=True)),
    )
