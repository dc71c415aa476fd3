"""What a service's traffic was lately: asked before a release, to know what its plan can reach."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

from activities.stage_metrics import MetricsReader, StageMetrics
from weightshift.analysis.counters import ArmRevisions
from weightshift.analysis.queries import (
    BUSY_SECONDS,
    business_selector,
    counter_selector,
    range_selector,
)
from weightshift.analysis.series import CumulativeCounter, SeriesTable
from weightshift.analysis.sizing import ObservedTraffic
from weightshift.contracts.identity import Cohort, Service
from weightshift.errors import MetricsUnreachable, QueryRefused

_SLICES = 10
_SHORTEST_SLICE_SCRAPES = 4


class Missing(StrEnum):
    """What there is nothing of: any series of the counter, or one of stable's."""

    COUNTER = "counter"
    SERIES = "series"


class TrafficObserver(Protocol):
    """Says what traffic a service has."""

    async def observe(self, service: Service, *, stable_revision: int) -> ObservedTraffic | None:
        """Return what stable does lately; None where nobody knows, or nothing came."""

    async def missing(self, service: Service, template: str, *, stable_revision: int) -> Missing | None:
        """Return what a business gate's own selector lacks on stable; None where nothing, or nobody knows.

        Raises `QueryRefused` for a selector that is none.
        """


@dataclass(frozen=True)
class Stretch:
    """What stable did in one stretch of time; `busy` is how long its requests took, in seconds, in sum."""

    requests: int
    errors: int = 0
    busy: float = 0.0


def busiest(stretches: Sequence[Stretch], *, seconds: float) -> ObservedTraffic | None:
    """Return the traffic of the busiest of some stretches, oldest first, of `seconds` each. Pure.

    The busiest, because a plan is refused only when even that would not do. The stretch in which traffic
    began tells nothing; None where there is no other.
    """
    began = next((index for index, one in enumerate(stretches) if one.requests), len(stretches))
    peak = max(stretches[began + 1 :], key=lambda stretch: stretch.requests, default=None)
    if peak is None or not peak.requests:
        return None
    return ObservedTraffic(
        requests_per_second=peak.requests / seconds,
        error_fraction=peak.errors / peak.requests,
        in_flight=peak.busy / seconds,
    )


class MeasuredTraffic:
    """A `TrafficObserver` on what Prometheus scraped in the calibration time."""

    def __init__(self, *, reader: MetricsReader, clock: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._clock = clock

    async def observe(self, service: Service, *, stable_revision: int) -> ObservedTraffic | None:
        """Return what stable does lately; None where nobody knows, or nothing came."""
        end = self._clock() - self._reader.scrape_interval
        seconds = max(
            self._reader.calibration / _SLICES, _SHORTEST_SLICE_SCRAPES * self._reader.scrape_interval
        )
        number = max(1, int(self._reader.calibration / seconds))
        moments = [end - index * seconds for index in range(number, -1, -1)]
        try:
            stretches = await self._stretches(service, stable_revision, moments)
        except (MetricsUnreachable, QueryRefused, ValueError):
            return None
        return busiest(stretches, seconds=seconds)

    async def missing(self, service: Service, template: str, *, stable_revision: int) -> Missing | None:
        """Return what a business gate's own selector lacks on stable; None where nothing, or nobody knows.

        Raises `QueryRefused` for a selector that is none.
        """
        on_stable = business_selector(
            template, service, Cohort.STABLE, stable_revision, self._reader.calibration
        )
        anywhere = counter_selector(template)
        try:
            if await self._finds(on_stable):
                return None
            if anywhere is None or await self._finds(anywhere):
                return Missing.SERIES
        except (MetricsUnreachable, ValueError):
            return None
        return Missing.COUNTER

    async def _finds(self, selector: str) -> bool:
        return bool(await self._reader.select(selector, end=self._clock()))

    async def _stretches(self, service: Service, revision: int, moments: Sequence[float]) -> list[Stretch]:
        """Count between one moment and the next (unix seconds)."""
        start, end = min(moments[0], moments[-1] - self._reader.calibration), moments[-1]
        metrics = StageMetrics(
            reader=self._reader,
            service=service,
            revisions=ArmRevisions(canary=0, stable=revision),
            gates=(),
        )
        counts = await metrics.read(start, end, edges=())
        selector = range_selector(BUSY_SECONDS, service, (revision,), end - start)
        busy = SeriesTable(CumulativeCounter)
        # Its first sample may be of any age, so what it had counted by then is left out.
        busy.add(await self._reader.select(selector, end=end), born_after=math.inf)
        tracks = [one for series in busy.of("stable", str(revision)).values() for _, one in series]

        def stretch(since: float, until: float) -> Stretch:
            stable = counts.interval(since, until).stable
            took = sum(one.at(until) - one.at(since) for one in tracks)
            return Stretch(stable.requests, stable.errors().total_bad, took)

        return [stretch(since, until) for since, until in pairwise(moments)]
