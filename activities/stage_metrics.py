"""Everything the gates of a stage are judged by, read from the metrics store."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from weightshift.errors import QueryRefused

_Business = tuple[tuple[Series, ...], tuple[Series, ...]]

_BIRTH_SCRAPES = 3
_OVERLAP_SCRAPES = 1
"""How far a later read goes back: a sample that came in late must not be missed."""


class MetricsReader(Protocol):
    """Reads raw samples."""

    scrape_interval: float
    """Seconds between two scrapes of an instance."""

    calibration: float
    """Seconds before a stage from which stable's usual latency is read."""

    mesh_errors: str
    """The selector of the mesh's own counter of failed requests to a `$cohort`; empty where there is none."""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        """Return the samples that a range selector finds up to `end` (unix seconds).

        Raises `MetricsUnreachable`, `QueryRefused`.
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

    async def read(
        self,
        start: float,
        end: float,
        *,
        edges: Sequence[float] | None = None,
        step: float | None = None,
    ) -> Counts:
        """Count everything between two moments (unix seconds).

        With `edges`, of latencies only these; with a `step` in seconds, only samples that far apart.
        A business gate whose query is refused is counted without. Raises `MetricsUnreachable`,
        `QueryRefused`.
        """
        apart = max(self._reader.scrape_interval, step or 0.0)
        raw = await self._read(
            _Span(end - start, end, edges, step), born_after=start + _BIRTH_SCRAPES * apart
        )
        counts = Counts(self._revisions, scrape_interval=self._reader.scrape_interval)
        await asyncio.to_thread(counts.add, raw)
        return counts

    async def read_on(
        self, counts: Counts, start: float, end: float, *, edges: Sequence[float] | None = None
    ) -> None:
        """Add what came between `start`, up to which `counts` was read, and `end`; the same edges as before.

        Raises `MetricsUnreachable`, `QueryRefused`; then nothing was added.
        """
        overlap = _OVERLAP_SCRAPES * self._reader.scrape_interval
        raw = await self._read(_Span(end - start + overlap, end, edges), born_after=-math.inf)
        await asyncio.to_thread(counts.add, raw)

    async def _read(self, span: "_Span", *, born_after: float) -> RawSamples:
        durations_wanted = span.edges is None or bool(span.edges)
        requests, durations, scores, rejected, memory = await asyncio.gather(
            self._select(True, REQUESTS, span),
            self._select(durations_wanted, DURATIONS, span, span.edges),
            self._select(Metric.SCORE_DRIFT in self._metrics, SCORES, span),
            self._select_any_revision(Metric.REJECT_RATE, REJECTED, span),
            self._select_any_revision(Metric.DEVICE_MEMORY, MEMORY, span),
        )
        business, refused = await self._read_every_business(span)
        mesh_errors = await self._read_mesh(span)
        return RawSamples(
            requests=requests,
            durations=durations,
            born_after=born_after,
            rejected=rejected,
            scores=scores,
            memory=memory,
            business=business,
            refused=refused,
            mesh_errors=mesh_errors,
        )

    async def _select(
        self, wanted: bool, metric: str, span: "_Span", edges: Sequence[float] | None = None
    ) -> tuple[Series, ...]:
        if not wanted:
            return ()
        revisions = (self._revisions.canary, self._revisions.stable)
        selector = range_selector(metric, self._service, revisions, span.seconds, edges=edges, step=span.step)
        return await self._reader.select(selector, end=span.end)

    async def _select_any_revision(self, wanted: Metric, metric: str, span: "_Span") -> tuple[Series, ...]:
        if wanted not in self._metrics:
            return ()
        selector = range_selector(metric, self._service, (), span.seconds, step=span.step)
        return await self._reader.select(selector, end=span.end)

    async def _read_mesh(self, span: "_Span") -> dict[str, tuple[Series, ...]]:
        """Return the mesh's failures by cohort; a canary that nothing reaches reports none itself."""
        if not (template := self._reader.mesh_errors):
            return {}
        found = await asyncio.gather(
            *(
                self._reader.select(
                    business_selector(template, self._service, cohort, 0, span.seconds), end=span.end
                )
                for cohort in Cohort
            )
        )
        return dict(zip((cohort.value for cohort in Cohort), found, strict=True))

    async def _read_every_business(self, span: "_Span") -> tuple[dict[str, _Business], dict[str, str]]:
        """Return each gate's series, or why they were refused: such a gate must not blind the others."""
        business: dict[str, _Business] = {}
        refused: dict[str, str] = {}
        for gate in self._business:
            try:
                business[gate.name] = await self._read_business(gate, span)
            except QueryRefused as refusal:
                refused[gate.name] = str(refusal)
        return business, refused

    async def _read_business(self, gate: Gate, span: "_Span") -> _Business:
        arms = ((Cohort.CANARY, self._revisions.canary), (Cohort.STABLE, self._revisions.stable))
        found = await asyncio.gather(
            *(
                self._reader.select(
                    business_selector(template, self._service, cohort, revision, span.seconds), end=span.end
                )
                for template in (gate.bad, gate.total)
                for cohort, revision in arms
            )
        )
        return (*found[0], *found[1]), (*found[2], *found[3])


@dataclass(frozen=True)
class _Span:
    """What is asked for: the `seconds` before `end` (unix seconds), and how much of it."""

    seconds: float
    end: float
    edges: Sequence[float] | None
    step: float | None = None
