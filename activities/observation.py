"""One stage's judgement over time: which intervals are due, what they hold, and when it may end."""

import asyncio
import math

from activities.stage_metrics import MetricsReader, StageMetrics
from weightshift.analysis.counters import ArmRevisions, Counts
from weightshift.analysis.curve import Curve
from weightshift.analysis.rules import history_edges, judged_edges
from weightshift.analysis.samples import Interval
from weightshift.analysis.sequential import Wealth
from weightshift.analysis.verdict import StageJudge, StageState
from weightshift.contracts.commands import CarriedWealth, Observation, Observed, ObserveMode
from weightshift.contracts.control import control_share
from weightshift.contracts.verdict import StageOutcome, StageVerdict
from weightshift.errors import MetricsUnreachable, QueryRefused

_LOOKBACK_SCRAPES = 10
_CALIBRATION_SAMPLES = 10
"""Of every bucket: enough to see restarts, and a few per cent of what is scraped meanwhile."""
_HISTORY_SECONDS = 3_600.0
_HISTORY_INTERVALS = 360


class StageObservation:
    """Judges a stage from its start. The interval in which the weight was written is dropped."""

    def __init__(self, observation: Observation, reader: MetricsReader) -> None:
        self._observation = observation
        self._reader = reader
        self._judge = StageJudge(observation.stage, control=_control_of(observation))
        self._metrics = _metrics_of(observation, reader, canary=observation.canary_revision)
        # What the canary did before the stage says nothing, and revision 0 is nobody's.
        self._past_metrics = _metrics_of(observation, reader, canary=0)
        self._interval = observation.interval.total_seconds()
        self._written_at = observation.started_at.timestamp()
        self._judged_until = self._written_at + self._interval
        self._state: StageState | None = None
        self._verdict: StageVerdict | None = None
        self._failed = False
        self._curve = Curve()
        self._edges: tuple[float, ...] | None = None
        self._counts: Counts | None = None
        self._read_until = self._judged_until

    async def judge_due_intervals(self, now: float) -> StageVerdict:
        """Judge every interval that closed at least one scrape ago; the last verdict stands while none did.

        Trouble in reading or judging is inconclusive, never a pass and never a breach.
        """
        if self._verdict is None or self.is_due(now):
            self._verdict = await self._judged(self._due_intervals(now))
        return self._verdict

    def is_due(self, now: float) -> bool:
        """Whether there is something to judge, or to try again."""
        return self._verdict is None or self._failed or self._due_intervals(now) > 0

    def seconds_to_next(self, now: float) -> float:
        """Return how long there is nothing to judge: until an interval closes, or the window does.

        Infinity after trouble: then it is tried again whenever the caller likes.
        """
        if self._failed:
            return math.inf
        interval = self._judged_until + self._interval + self._reader.scrape_interval - now
        window = self._written_at + self._observation.stage.window.total_seconds() - now
        return min(interval, window) if window > 0 else interval

    def _due_intervals(self, now: float) -> int:
        # Samples of an interval's end arrive with the next scrape.
        closed = now - self._reader.scrape_interval
        return math.floor((closed - self._judged_until) / self._interval)

    async def _judged(self, due: int) -> StageVerdict:
        self._failed = True
        try:
            if self._state is None:
                self._state = await self._start()
            if due > 0:
                await self._advance(self._state, due)
        except (MetricsUnreachable, QueryRefused) as error:
            return self._inconclusive(str(error))
        except (ValueError, KeyError, ArithmeticError) as error:
            return self._inconclusive(f"the analysis failed: {type(error).__name__}: {error}")
        self._failed = False
        return self._judge.verdict(self._state)

    async def _start(self) -> StageState:
        """Read what stable did before the stage, and take over the evidence of earlier stages."""
        wealth = {
            name: Wealth(active=carried.active, idle=carried.idle)
            for name, carried in self._observation.wealth.items()
        }
        start = self._written_at - self._reader.calibration
        step = max(self._reader.scrape_interval, self._reader.calibration / _CALIBRATION_SAMPLES)
        counts = await self._past_metrics.read(start, self._written_at, step=step)
        calibration = counts.interval(start, self._written_at)
        history = await self._history(calibration)
        gates = self._observation.stage.gates
        if (edges := judged_edges(gates, calibration)) is not None:
            self._edges, calibration = edges, calibration.at_edges(edges)
        # An hour of samples takes a moment to work through: rollbacks must not wait for it.
        return await asyncio.to_thread(self._judge.start, wealth, calibration, history)

    async def _history(self, calibration: Interval) -> list[Interval]:
        """Read stable's last hour interval by interval; of its latencies only what the gates compare."""
        number = min(_HISTORY_INTERVALS, int(_HISTORY_SECONDS / self._interval))
        start = self._written_at - number * self._interval
        edges = history_edges(self._observation.stage.gates, calibration)
        counts = await self._past_metrics.read(start, self._written_at, edges=edges)
        moments = [start + index * self._interval for index in range(number)]

        def cut() -> list[Interval]:
            intervals = [counts.interval(moment, moment + self._interval) for moment in moments]
            return [interval for interval in intervals if interval.stable.requests]

        return await asyncio.to_thread(cut)

    async def _advance(self, state: StageState, due: int) -> None:
        """Judge `due` intervals, in a thread: on the event loop a rollback would wait for all judges."""
        until = self._judged_until + due * self._interval
        counts, curve = await self._read_up_to(until), self._curve
        starts = [self._judged_until + number * self._interval for number in range(due)]

        def judge() -> tuple[StageState, Curve]:
            judged, drawn = state, curve
            for start in starts:
                interval = counts.interval(start, start + self._interval)
                judged = self._judge.advance(judged, interval)
                drawn = drawn.after(interval, judged.evidence, until=start + self._interval)
            counts.forget(until)
            return judged, drawn

        self._state, self._curve = await asyncio.to_thread(judge)
        self._judged_until = until

    async def _read_up_to(self, until: float) -> Counts:
        """Read what was not read before; every sample is read once, however long a stage lasts."""
        if self._counts is None:
            start = self._judged_until - _LOOKBACK_SCRAPES * self._reader.scrape_interval
            self._counts = await self._metrics.read(start, until, edges=self._edges)
        elif until > self._read_until:
            await self._metrics.read_on(self._counts, self._read_until, until, edges=self._edges)
        self._read_until = until
        return self._counts

    def is_final(self, verdict: StageVerdict, now: float) -> bool:
        """Whether the verdict may be returned now, by the observation's mode."""
        mode, stage = self._observation.mode, self._observation.stage
        if verdict.outcome is StageOutcome.BREACH:
            return True
        if mode is ObserveMode.WATCH:
            return False
        elapsed = now - self._written_at
        if verdict.outcome is StageOutcome.HEALTHY:
            return elapsed >= stage.window.total_seconds()
        slack = self._interval + self._reader.scrape_interval
        return mode is ObserveMode.WINDOW and elapsed >= stage.max_window.total_seconds() + slack

    def observed(self, verdict: StageVerdict, *, evidence_recorded: bool) -> Observed:
        """Return the verdict with the wealth for the next stage, and what was judged."""
        evidence = self._state.evidence if self._state else {}
        return Observed(
            verdict=verdict,
            evidence_recorded=evidence_recorded,
            wealth={
                name: CarriedWealth(active=one.harm.active, idle=one.harm.idle)
                for name, one in evidence.items()
            },
            curve=self._curve.document(),
        )

    @staticmethod
    def _inconclusive(reason: str) -> StageVerdict:
        return StageVerdict(outcome=StageOutcome.INCONCLUSIVE, reason=reason)


def _metrics_of(observation: Observation, reader: MetricsReader, *, canary: int) -> StageMetrics:
    return StageMetrics(
        reader=reader,
        service=observation.service,
        revisions=ArmRevisions(canary, observation.stable_revision),
        gates=observation.stage.gates,
    )


def _control_of(observation: Observation) -> int:
    """Return the share that is compared with at 100 %, by what the mesh was read back to do."""
    split = observation.traffic.split if observation.traffic else None
    return control_share(observation.stage.weight, split)
