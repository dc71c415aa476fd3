"""Everything the gates of a stage are judged by, read from the metrics store."""

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from weightshift.analysis.counters import ArmRevisions, Counts, RawSamples
from weightshift.analysis.queries import (
    DURATIONS,
    MEMORY,
    REJECTED,
    REQUESTS,
    SCORES,
    business_selector,
    range_selector,
)
from weightshift.analysis.series import Series
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.plan import Gate, Metric

_BIRTH_SCRAPES = 3
_OVERLAP_SCRAPES = 3
"""How far a later read goes back: a sample that came in late must not be missed."""


class MetricsReader(Protocol):
    """Reads raw samples."""

    scrape_interval: float
    """Seconds between two scrapes of an instance."""

    calibration: float
    """Seconds before a stage from which stable's usual latency is read."""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        """Return the samples that a range selector finds up to `end` (unix seconds).

        Raises `MetricsUnreachable`.
        """


class StageMetrics:
    """Reads what a stage's gates need, and nothing else."""

    def __init__(
        self, *, reader: MetricsReader, service: Service, revisions: ArmRevisions, gates: Sequence[Gate]
    ) -> None:
        self._reader = reader
        self._service = service
        self._revisions = revisions
        self._metrics = {gate.metric for gate in gates}
        self._business = [gate for gate in gates if gate.metric is Metric.BUSINESS]

    async def read(self, start: float, end: float, *, edges: Sequence[float] | None = None) -> Counts:
        """Count everything between two moments (unix seconds); with `edges`, of latencies only these.

        Raises `MetricsUnreachable`.
        """
        born_after = start + _BIRTH_SCRAPES * self._reader.scrape_interval
        raw = await self._read(start, end, born_after=born_after, edges=edges)
        counts = Counts(self._revisions)
        await asyncio.to_thread(counts.add, raw)
        return counts

    async def read_on(
        self, counts: Counts, start: float, end: float, *, edges: Sequence[float] | None = None
    ) -> None:
        """Add what came between `start`, up to which `counts` was read, and `end`; the same edges as before.

        Raises `MetricsUnreachable`; then nothing was added.
        """
        overlapping = start - _OVERLAP_SCRAPES * self._reader.scrape_interval
        counts.add(await self._read(overlapping, end, born_after=-math.inf, edges=edges))

    async def _read(
        self, start: float, end: float, *, born_after: float, edges: Sequence[float] | None
    ) -> RawSamples:
        seconds = end - start
        requests, durations, scores, rejected, memory = await asyncio.gather(
            self._select(True, REQUESTS, seconds, end),
            self._select(edges is None or bool(edges), DURATIONS, seconds, end, edges),
            self._select(Metric.SCORE_DRIFT in self._metrics, SCORES, seconds, end),
            self._select_any_revision(Metric.REJECT_RATE, REJECTED, seconds, end),
            self._select_any_revision(Metric.DEVICE_MEMORY, MEMORY, seconds, end),
        )
        return RawSamples(
            requests=requests,
            durations=durations,
            born_after=born_after,
            rejected=rejected,
            scores=scores,
            memory=memory,
            business={gate.name: await self._read_business(gate, seconds, end) for gate in self._business},
        )

    async def _select(
        self, wanted: bool, metric: str, seconds: float, end: float, edges: Sequence[float] | None = None
    ) -> tuple[Series, ...]:
        if not wanted:
            return ()
        revisions = (self._revisions.canary, self._revisions.stable)
        selector = range_selector(metric, self._service, revisions, seconds, edges=edges)
        return await self._reader.select(selector, end=end)

    async def _select_any_revision(
        self, wanted: Metric, metric: str, seconds: float, end: float
    ) -> tuple[Series, ...]:
        if wanted not in self._metrics:
            return ()
        return await self._reader.select(range_selector(metric, self._service, (), seconds), end=end)

    async def _read_business(
        self, gate: Gate, seconds: float, end: float
    ) -> tuple[tuple[Series, ...], tuple[Series, ...]]:
        arms = ((Cohort.CANARY, self._revisions.canary), (Cohort.STABLE, self._revisions.stable))
        found = await asyncio.gather(
            *(
                self._reader.select(
                    business_selector(template, self._service, cohort, revision, seconds), end=end
                )
                for template in (gate.bad, gate.total)
                for cohort, revision in arms
            )
        )
        return (*found[0], *found[1]), (*found[2], *found[3])
