"""Whatever happens to a release, in whatever order, its rules hold: a Hypothesis state machine.

Each example is one release on a time-skipping server of its own. `WEIGHTSHIFT_EXAMPLES` sets how many.
"""

import asyncio
import contextlib
import os
import traceback
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from temporalio.client import (
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
    WorkflowUpdateStage,
)
from temporalio.service import RPCError

from tests.workflow.harness import time_skipping_server
from tests.workflow.history_rules import breaches, broken_rules, commands, intents
from tests.workflow.scenario import Scenario
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import Gate, Metric, Plan, Stage
from weightshift.contracts.release import Outcome, ReleaseResult, RollbackRequest
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import WeightshiftError

PLAN = Plan(
    stages=(Stage(weight=25), Stage(weight=100)),
    window=timedelta(minutes=10),
    max_window=timedelta(hours=1),
    retain=timedelta(minutes=30),
    gates=(Gate(metric=Metric.ERROR_RATE, maximum=0.03),),
)
_STEP_SECONDS = 120.0
_MESSAGE_TIMEOUT = timedelta(seconds=10)
_PAYLOADS: tuple[list[Any], ...] = ([], [{"operator": "sre"}], ["smells"], [{"a": 1}, {"b": 2}], [None])


class AnyOrder(RuleBasedStateMachine):
    """One release, and everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._exits = contextlib.AsyncExitStack()
        self._paused = False
        self._scenario: Scenario

    def _do(self, action: Coroutine[Any, Any, None], *, at_once: bool = False) -> None:
        """Do something; unless the next thing comes at once, wait until the release has done its part."""

        async def do() -> None:
            async with asyncio.timeout(_STEP_SECONDS):
                await action
                if not at_once:
                    await self._scenario.settled()

        self._run(do())

    def _run(self, action: Coroutine[Any, Any, None]) -> None:
        """Run something, and show its failure even where it does not come again."""
        try:
            self._runner.run(action)
        except BaseException:
            traceback.print_exc()
            raise

    @initialize(fits=st.sampled_from([True, True, True, False]))
    def start(self, fits: bool) -> None:
        """A release of v42 begins beside a healthy v41."""
        self._do(self._start(fits))

    async def _start(self, fits: bool) -> None:
        environment = await self._exits.enter_async_context(time_skipping_server())
        self._scenario = scenario = Scenario(environment)
        self._exits.push_async_callback(scenario.stop_workers)
        await scenario.restart_workers()
        fleet = asyncio.create_task(scenario.fleet.run())
        self._exits.callback(fleet.cancel)
        for artifact_id in ("v41", "v42"):
            await scenario.artifact(artifact_id)
        await scenario.fleet.follow()
        await scenario.release("v41")
        scenario.fleet.unfit.update(() if fits else ("v42",))
        await scenario.start("v42", PLAN)

    @rule(outcome=st.sampled_from(StageOutcome))
    def judged(self, outcome: StageOutcome) -> None:
        """The judge says something, when it is asked."""
        if self._scenario.judge.is_waiting:
            self._scenario.judge.say(outcome)
        self._do(asyncio.sleep(0))

    @rule()
    def stage_goes_well(self) -> None:
        """A whole stage passes, so that late places are reached as often as early ones."""
        self.judged(StageOutcome.HEALTHY)
        self.time_passes()

    @rule()
    def time_passes(self) -> None:
        """The next timer fires: a window's, or the parachute's."""
        self._do(self._time_passes())

    async def _time_passes(self) -> None:
        scenario = self._scenario
        if await scenario.has_timer() and not scenario.judge.is_waiting:
            await scenario.let_time_pass()

    @rule(payload=st.sampled_from(_PAYLOADS), at_once=st.booleans())
    def rollback_signalled(self, payload: list[Any], at_once: bool) -> None:
        """Somebody sends the signal, typed well or not."""
        self._do(self._tolerant(self._scenario.handle.signal("rollback", args=payload)), at_once=at_once)

    @rule()
    def rollback_asked(self) -> None:
        """Somebody sends the update; its answer is not waited for."""
        self._do(self._update("rollback", RollbackRequest(operator="sre")))

    @rule(name=st.sampled_from(["promote", "pause", "resume"]), at_once=st.booleans())
    def steered(self, name: str, at_once: bool) -> None:
        """Somebody steers."""
        self._do(self._update(name), at_once=at_once)

    @rule()
    def cancelled(self) -> None:
        """Somebody cancels the workflow in the Temporal UI."""
        self._do(self._tolerant(self._scenario.handle.cancel()))

    @rule(after_effect=st.booleans())
    def mesh_fails(self, after_effect: bool) -> None:
        """The next write to the mesh fails, perhaps after it was done."""
        self._scenario.troubled_mesh.trouble.add(after_effect=after_effect)

    @rule(after_effect=st.booleans())
    def registry_fails(self, after_effect: bool) -> None:
        """The next write to the registry fails, perhaps after it was done."""
        self._scenario.troubled_registry.trouble.add(after_effect=after_effect)

    @rule()
    def workers_restart(self) -> None:
        """The control plane is deployed anew."""
        self._do(self._scenario.restart_workers())

    @rule(choice=st.integers(min_value=0, max_value=50))
    def late_mesh_write(self, choice: int) -> None:
        """A frozen worker thaws and repeats a write of long ago."""
        self._do(self._late_mesh_write(choice))

    async def _late_mesh_write(self, choice: int) -> None:
        mesh = self._scenario.troubled_mesh
        before = await mesh.read(self._scenario.service)
        service, split, fence = mesh.writes[choice % len(mesh.writes)]
        with contextlib.suppress(WeightshiftError):
            await mesh.write(service, split, fence)
        assert await mesh.read(self._scenario.service) == before, "a late write moved traffic"

    @rule(choice=st.integers(min_value=0, max_value=50))
    def late_publication(self, choice: int) -> None:
        """A frozen worker thaws and repeats a publication of long ago."""
        self._do(self._late_publication(choice))

    async def _late_publication(self, choice: int) -> None:
        registry = self._scenario.troubled_registry
        before = await registry.targets(self._scenario.service)
        publication, first = registry.publications[choice % len(registry.publications)]
        with contextlib.suppress(WeightshiftError):
            assert (await registry.publish(publication)).revision == first.revision
        assert await registry.targets(self._scenario.service) == before, "a late publication changed a target"

    async def _update(self, name: str, *arguments: object) -> None:
        await self._tolerant(
            self._scenario.handle.start_update(
                name,
                args=arguments,
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                rpc_timeout=_MESSAGE_TIMEOUT,
            )
        )

    async def _tolerant(self, call: Coroutine[Any, Any, object]) -> None:
        """A message may be refused, or come too late."""
        with contextlib.suppress(
            WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError, RPCError
        ):
            await call

    @invariant()
    def rules_hold(self) -> None:
        """Nothing in the history breaks a rule, and every revision names one artifact."""
        if hasattr(self, "_scenario"):
            self._run(self._rules_hold())

    async def _rules_hold(self) -> None:
        events = await self._scenario.events()
        assert broken_rules(events, window=PLAN.window) == []
        named: dict[int, str] = {}
        for publication, target in self._scenario.troubled_registry.publications:
            assert named.setdefault(target.revision, publication.artifact_id) == publication.artifact_id

    def teardown(self) -> None:
        """Let the release end; what it ends on is terminal, and true."""
        try:
            if hasattr(self, "_scenario"):
                self._run(self._to_the_end())
        finally:
            self._runner.run(self._exits.aclose())
            self._runner.close()

    async def _to_the_end(self) -> None:
        scenario = self._scenario
        await self._update("resume")
        async with asyncio.timeout(_STEP_SECONDS):
            while not await scenario.has_ended():
                await scenario.settled()
                if scenario.judge.is_waiting:
                    scenario.judge.say(StageOutcome.HEALTHY)
                elif await scenario.has_timer():
                    await scenario.let_time_pass()
        await self._rules_hold()
        await self._end_is_true(await scenario.handle.result())

    async def _end_is_true(self, result: ReleaseResult) -> None:
        scenario = self._scenario
        state = await scenario.mesh.read(scenario.service)
        if any(one.name == "mesh.write" for one in commands(await scenario.events())):
            assert result.split == state.split
        assert state.split.is_terminal
        serving = Cohort.STABLE if state.split.canary == 0 else Cohort.CANARY
        healthy = "v42" if result.outcome is Outcome.PROMOTED else "v41"
        assert await scenario.serves(serving, healthy)
        assert all(
            record.outcome is not None for record in await scenario.registry.releases(scenario.service)
        )
        events = await scenario.events()
        if any(one.name in ("rollback", "cancel") for one in _in_time(events)):
            assert result.outcome is not Outcome.PROMOTED, "a rollback asked for in time did not win"
        if breaches(events):
            assert result.outcome is not Outcome.PROMOTED, "a breach was passed over"


def _in_time(events: list[Any]) -> list[Any]:
    """Return the messages that came before the release began to free its lock."""
    freed = [one.scheduled_id for one in commands(events) if one.name == "registry.complete"]
    return [one for one in intents(events) if not freed or one.event_id < freed[0]]


AnyOrder.TestCase.settings = settings(
    max_examples=int(os.environ.get("WEIGHTSHIFT_EXAMPLES", "12")),
    stateful_step_count=12,
    deadline=None,
    derandomize="WEIGHTSHIFT_EXAMPLES" not in os.environ,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestAnyOrder = AnyOrder.TestCase
