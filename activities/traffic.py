"""What a service's traffic was lately: asked before a release, to know what its plan can reach."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from activities.stage_metrics import MetricsReader, StageMetrics
from weightshift.analysis.counters import ArmRevisions
from weightshift.analysis.samples import Interval
from weightshift.analysis.sizing import ObservedTraffic
from weightshift.contracts.identity import Service
from weightshift.errors import MetricsUnreachable

_SLICES = 10
_SHORTEST_SLICE_SCRAPES = 4


class TrafficObserver(Protocol):
    """Says what traffic a service has."""

    async def observe(self, service: Service, *, stable_revision: int) -> ObservedTraffic | None:
        """Return what stable does lately; None where nobody knows, or nothing came."""


def busiest(intervals: Sequence[Interval], *, seconds: float) -> ObservedTraffic | None:
    """Return the traffic of the busiest of some stretches, oldest first, of `seconds` each. Pure.

    The busiest, because a plan is refused only when even that would not do. The stretch in which traffic
    began tells nothing; None where there is no other. Latencies are known by the edges of their buckets,
    so `in_flight` is the least that it can have been.
    """
    began = next((index for index, one in enumerate(intervals) if one.stable.requests), len(intervals))
    peak = max(intervals[began + 1 :], key=lambda interval: interval.stable.requests, default=None)
    if peak is None or not peak.stable.requests:
        return None
    previous, busy_seconds = 0.0, 0.0
    for index, edge in enumerate(peak.edges):
        busy_seconds += (edge - previous) * peak.stable.slower_than(index).total_bad
        previous = edge
    return ObservedTraffic(
        requests_per_second=peak.stable.requests / seconds,
        error_fraction=peak.stable.errors().total_bad / peak.stable.requests,
        in_flight=busy_seconds / seconds,
    )


class MeasuredTraffic:
    """A `TrafficObserver` on what Prometheus scraped in the calibration time."""

    def __init__(self, *, reader: MetricsReader, clock: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._clock = clock

    async def observe(self, service: Service, *, stable_revision: int) -> ObservedTraffic | None:
        """Return what stable does lately; None where nobody knows, or nothing came."""
        metrics = StageMetrics(
            reader=self._reader,
            service=service,
            revisions=ArmRevisions(canary=0, stable=stable_revision),
            gates=(),
        )
        end = self._clock() - self._reader.scrape_interval
        start = end - self._reader.calibration
        seconds = max(
            self._reader.calibration / _SLICES, _SHORTEST_SLICE_SCRAPES * self._reader.scrape_interval
        )
        try:
            counts = await metrics.read(start, end)
        except (MetricsUnreachable, ValueError):
            return None
        number = max(1, int(self._reader.calibration / seconds))
        moments = [end - index * seconds for index in range(number, 0, -1)]
        return busiest([counts.interval(moment, moment + seconds) for moment in moments], seconds=seconds)
