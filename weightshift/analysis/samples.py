"""What a judgement works on: counts per instance, per arm, per interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InstanceCounts:
    """One instance in one interval.

    `slower[i]` counts the requests that took longer than the i-th latency edge of the interval.
    """

    requests: int
    errors: int
    slower: tuple[int, ...]


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


@dataclass(frozen=True)
class ArmCounts:
    """All instances of one arm in one interval; `fresh` is False when nothing was scraped in it."""

    instances: Mapping[str, InstanceCounts] = field(default_factory=dict)
    fresh: bool = False

    @property
    def requests(self) -> int:
        """Requests of the whole arm."""
        return sum(counts.requests for counts in self.instances.values())

    def errors(self) -> BadCounts:
        """Count failed requests as bad."""
        return self._bad(tuple(counts.errors for counts in self.instances.values()))

    def slower_than(self, edge: int) -> BadCounts:
        """Count requests slower than the edge with this index as bad."""
        return self._bad(tuple(counts.slower[edge] for counts in self.instances.values()))

    def _bad(self, bad: tuple[int, ...]) -> BadCounts:
        requests = tuple(counts.requests for counts in self.instances.values())
        # A request is counted by two series that are read a moment apart: never more bad than all.
        return BadCounts(requests, tuple(min(b, n) for b, n in zip(bad, requests, strict=True)))

    def plus(self, other: "ArmCounts") -> "ArmCounts":
        """Add a later interval of the same arm, instance by instance.

        When its latency edges are others than before, the earlier counts are of no use and dropped.
        """
        if self._edge_counts() != other._edge_counts() and other.instances:
            return other
        names = {*self.instances, *other.instances}
        return ArmCounts(
            {name: _add(self.instances.get(name), other.instances.get(name)) for name in names},
            fresh=self.fresh or other.fresh,
        )

    def _edge_counts(self) -> set[int]:
        return {len(counts.slower) for counts in self.instances.values()}


@dataclass(frozen=True)
class Interval:
    """Both arms over the same stretch of time; `edges` are latency limits in seconds, rising."""

    canary: ArmCounts
    stable: ArmCounts
    edges: tuple[float, ...]


def _add(first: InstanceCounts | None, second: InstanceCounts | None) -> InstanceCounts:
    if first is None or second is None:
        return first or second or InstanceCounts(0, 0, ())
    return InstanceCounts(
        requests=first.requests + second.requests,
        errors=first.errors + second.errors,
        slower=tuple(a + b for a, b in zip(first.slower, second.slower, strict=True)),
    )
