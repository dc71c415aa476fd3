"""The activity that judges a stage, interval by interval, from what Prometheus scraped."""

import asyncio
import math
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from temporalio import activity

from activities.evidence import record_evidence
from activities.incidents import count_judged_without_registry
from activities.mesh_watch import MeshWatch
from activities.observation import StageObservation
from activities.options import OBSERVE
from activities.stage_metrics import MetricsReader
from weightshift.contracts.commands import InstanceRef, Observation, Observed
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.verdict import StageOutcome, StageVerdict
from weightshift.errors import WeightshiftError
from weightshift.mesh.base import Mesh
from weightshift.registry.base import Registry

_SHORTEST_PAUSE = 0.1
# Well within the heartbeat's time-out, however rarely instances are looked at.
_LONGEST_SILENCE = 4.0
_NOTHING_JUDGED = "nothing is judged yet"
# Bounds the memory that stages need which begin at the same time, an hour of samples each. A stage that ends
# in its turn gives it back at once, and its thread ends a moment later.
_JUDGED_AT_A_TIME = 8


def lost_instance(expected: tuple[InstanceRef, ...], states: tuple[InstanceState, ...]) -> str | None:
    """Return why an expected instance counts as lost, or None. Pure."""
    by_id = {state.report.instance_id: state for state in states}
    for reference in expected:
        state = by_id.get(reference.instance_id)
        if state is None or state.lost:
            return f"{reference.instance_id} is lost: it no longer reports"
        if state.report.boot_id != reference.boot_id:
            return f"{reference.instance_id} is lost: it was restarted"
    return None


class _Pulse:
    """Says that a judge lives: at once what is new, and else no more often than has to be.

    A beat costs a third of a millisecond, also one that Temporal's client keeps back.
    """

    def __init__(self) -> None:
        self._said: str | None = None
        self._at = -math.inf

    def beat(self, said: str) -> None:
        """Beat, if it is time or `said` is new."""
        now = time.monotonic()
        if said != self._said or now - self._at >= _LONGEST_SILENCE:
            self._said, self._at = said, now
            activity.heartbeat(said)


class MetricsActivities:
    """Judges stages. Recomputes a stage from its start when it is run again, so a restart changes nothing."""

    def __init__(
        self,
        *,
        reader: MetricsReader,
        registry: Registry,
        mesh: Mesh,
        lost_after: timedelta,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = reader
        self._registry = registry
        self._mesh = mesh
        self._lost_after = lost_after
        self._clock = clock
        self._turns = asyncio.Semaphore(_JUDGED_AT_A_TIME)

    @activity.defn(name=OBSERVE.name)
    async def observe(self, observation: Observation) -> Observed:
        """Return when the observation's mode allows.

        At once on a breach, on a lost instance, and when somebody else moves the stage's traffic.
        """
        stage = StageObservation(observation, self._reader)
        watch = MeshWatch(mesh=self._mesh, observation=observation)
        recorded = await self._record_evidence(observation)
        looks = min(min(observation.interval, self._lost_after).total_seconds() / 2, _LONGEST_SILENCE)
        said, verdict = _NOTHING_JUDGED, None
        pulse = _Pulse()
        pulse.beat(said)
        while True:
            if verdict is None or stage.is_due(self._clock()):
                verdict = await self._in_turn(stage, observation, partial(pulse.beat, said), looks)
            is_final = stage.is_final(verdict, self._clock())
            problem = await self._lost(observation) or await watch.problem(at_once=is_final)
            if problem is not None:
                verdict = StageVerdict(outcome=StageOutcome.BREACH, reason=problem)
                return stage.observed(verdict, evidence_recorded=recorded)
            said = verdict.reason
            pulse.beat(said)
            if is_final:
                return stage.observed(verdict, evidence_recorded=recorded)
            await asyncio.sleep(max(_SHORTEST_PAUSE, min(looks, stage.seconds_to_next(self._clock()))))

    async def _in_turn(
        self, stage: StageObservation, observation: Observation, beat: Callable[[], None], looks: float
    ) -> StageVerdict:
        """Judge what is due when it is this stage's turn; a lost instance does not wait for that.

        Meanwhile the instances are looked at every `looks` seconds, and every `beat` repeats what was said
        last: that is what people are shown.
        """

        async def judge() -> StageVerdict:
            async with self._turns:
                return await stage.judge_due_intervals(self._clock())

        judging = asyncio.create_task(judge())
        try:
            while True:
                await asyncio.wait((judging,), timeout=looks)
                if judging.done():
                    return judging.result()
                beat()
                if lost := await self._lost(observation):
                    return StageVerdict(outcome=StageOutcome.BREACH, reason=lost)
        finally:
            judging.cancel()

    async def _record_evidence(self, observation: Observation) -> bool:
        """Record what was gathered before; a registry that does not take it keeps no stage from its judge."""
        try:
            await record_evidence(self._registry, observation.evidence)
        except WeightshiftError as error:
            _without_registry("evidence is not recorded yet", error)
            return False
        return True

    async def _lost(self, observation: Observation) -> str | None:
        try:
            states = await self._registry.instances(observation.service, lost_after=self._lost_after)
        except WeightshiftError as error:
            _without_registry("nothing can be said of the instances, the metrics still judge", error)
            return None
        return lost_instance(observation.canary, states)


def _without_registry(what: str, error: WeightshiftError) -> None:
    count_judged_without_registry()
    activity.logger.warning("%s: %s: %s", what, type(error).__name__, error)
