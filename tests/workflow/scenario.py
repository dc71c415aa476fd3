"""One release under a test's control: its judge waits to be told, and its outside fails when told."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from activities.evidence import record_evidence
from activities.options import OBSERVE
from tests.workflow.harness import Harness
from tests.workflow.history_rules import commands, has_open_timer, is_thinking
from tests.workflow.twins import CountingMesh, ScriptedObservations, SimulatedFleet
from weightshift.contracts.commands import Observation, Observed
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.release import Completion, ReleaseResult
from weightshift.contracts.target import Publication, Target
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.contracts.verdict import StageOutcome, StageVerdict
from weightshift.errors import MeshUnreachable, RegistryUnreachable
from weightshift.registry.memory import MemoryRegistry

Answer = TypeVar("Answer")
_SETTLED_WITHIN = 60.0
_ENDS = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
)


class Trouble:
    """Failures that are still to come: whether each strikes before or after the call took effect."""

    def __init__(self) -> None:
        self._coming: list[bool] = []

    def add(self, *, after_effect: bool) -> None:
        """Let one more call fail."""
        self._coming.append(after_effect)

    async def strike(self, call: Callable[[], Awaitable[Answer]], error: Exception) -> Answer:
        """Make the call, and fail it when its turn has come."""
        if not self._coming:
            return await call()
        if self._coming.pop(0):
            await call()
        raise error


class TroubledMesh(CountingMesh):
    """A mesh whose writes fail when told, also after they were done."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble = Trouble()

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        """Write, or fail as told."""
        return await self.trouble.strike(
            lambda: super(TroubledMesh, self).write(service, split, fence, expected=expected),
            MeshUnreachable("told to fail"),
        )


class TroubledRegistry(MemoryRegistry):
    """A registry whose publications and completions fail when told; keeps what was published."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble = Trouble()
        self.publications: list[tuple[Publication, Target]] = []

    async def publish(self, publication: Publication) -> Target:
        """Publish, or fail as told."""

        async def call() -> Target:
            target = await super(TroubledRegistry, self).publish(publication)
            self.publications.append((publication, target))
            return target

        return await self.trouble.strike(call, RegistryUnreachable("told to fail"))

    async def complete(self, completion: Completion) -> None:
        """Complete, or fail as told."""
        await self.trouble.strike(
            lambda: super(TroubledRegistry, self).complete(completion), RegistryUnreachable("told to fail")
        )


class PatientJudge(ScriptedObservations):
    """Judges nothing until it is told what to say."""

    def __init__(self, registry: MemoryRegistry) -> None:
        super().__init__(registry)
        self._verdicts: asyncio.Queue[StageOutcome] = asyncio.Queue()
        self.waiting = 0

    @property
    def is_waiting(self) -> bool:
        """Whether a judgement runs and nothing was said to it yet."""
        return self.waiting > 0 and self._verdicts.empty()

    def say(self, outcome: StageOutcome) -> None:
        """End the running judgement."""
        self._verdicts.put_nowait(outcome)

    @activity.defn(name="metrics.observe")
    async def observe(self, observation: Observation) -> Observed:
        """Answer what is said."""
        self.waiting += 1
        try:
            while True:
                activity.heartbeat()
                with contextlib.suppress(TimeoutError):
                    outcome = await asyncio.wait_for(self._verdicts.get(), 0.02)
                    break
        finally:
            self.waiting -= 1
        await record_evidence(self._registry, observation.evidence)
        return Observed(
            verdict=StageVerdict(outcome=outcome, reason=f"said {outcome}"), evidence_recorded=True
        )


class Scenario(Harness):
    """A harness whose outside is troubled, whose judge is patient, and whose workers come and go.

    No workflow is cached: every step replays the whole history, and no task waits for a worker that is gone.
    """

    cached_workflows = 0

    def __init__(self, environment: WorkflowEnvironment) -> None:
        super().__init__(environment)
        self.troubled_mesh = TroubledMesh()
        self.troubled_registry = TroubledRegistry()
        self.judge = PatientJudge(self.troubled_registry)
        self.mesh = self.troubled_mesh
        self.registry = self.troubled_registry
        self.fleet = SimulatedFleet(self.registry, self.service)
        self.observations = self.judge
        self._running = contextlib.AsyncExitStack()

    @property
    def handle(self) -> WorkflowHandle[Any, ReleaseResult]:
        """The latest release."""
        client = self.environment.client
        return client.get_workflow_handle(self.service.workflow_id, result_type=ReleaseResult)

    async def restart_workers(self) -> None:
        """End the workers as a deployment does, and start new ones."""
        await self.stop_workers()
        for worker in self.workers(self.environment.client):
            await self._running.enter_async_context(worker)

    async def stop_workers(self) -> None:
        """End the workers."""
        await self._running.aclose()
        self._running = contextlib.AsyncExitStack()

    async def has_ended(self) -> bool:
        """Whether the release is over."""
        return (await self.events())[-1].event_type in _ENDS

    async def settled(self) -> None:
        """Wait until nothing happens any more but timers and a judgement that waits to be told."""
        async with asyncio.timeout(_SETTLED_WITHIN):
            while not await self._is_settled():
                await asyncio.sleep(0.01)

    async def _is_settled(self) -> bool:
        events = await self.events()  # one look: two could fall on either side of a step
        if events[-1].event_type in _ENDS:
            return True
        open_activities = [one.name for one in commands(events) if not one.is_over]
        judging = open_activities == [OBSERVE.name] and self.judge.is_waiting
        return not is_thinking(events) and (judging or not open_activities)

    async def has_timer(self) -> bool:
        """Whether a timer of the release is running."""
        return has_open_timer(await self.events())

    async def let_time_pass(self) -> None:
        """Skip to the next timer's end, and settle."""
        before = len(await self.events())

        async def moved() -> bool:
            return len(await self.events()) > before or await self.has_ended()

        async with self.environment.time_skipping_unlocked():  # type: ignore[attr-defined]
            await self.until_in_real_time(moved)
        await self.settled()

    async def events(self) -> list[HistoryEvent]:
        """Return the history of the latest release."""
        return [event async for event in self.handle.fetch_history_events()]
