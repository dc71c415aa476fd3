"""One release in progress: its state, the intents that messages leave, and how it calls activities."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey

with workflow.unsafe.imports_passed_through():
    from activities.options import Call, mesh_queue
    from weightshift.contracts.commands import Admittance, CarriedWealth, FleetProgress, InstanceRef
    from weightshift.contracts.evidence import Evidence
    from weightshift.contracts.identity import Fence
    from weightshift.contracts.release import (
        Outcome,
        ReleasePhase,
        ReleaseRequest,
        ReleaseStatus,
        RollbackRequest,
        Step,
    )
    from weightshift.contracts.traffic import MeshState, TrafficSplit
    from weightshift.contracts.verdict import StageVerdict
    from workflows.approvals import ApprovalGates
    from workflows.rollback import Position, way_back

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")

STAGE_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseStage")
VERDICT_ATTRIBUTE = SearchAttributeKey.for_keyword("ReleaseVerdict")

_PREPARING = "preparing"
_SEARCHABLE = {
    **dict.fromkeys(ReleasePhase, _PREPARING),
    ReleasePhase.AWAITING_APPROVAL: "awaiting-approval",
    ReleasePhase.PROMOTING: "promoting",
    ReleasePhase.RETURNING: "promoting",
    ReleasePhase.PARACHUTE: "parachute",
    ReleasePhase.RETIRING: "parachute",
    ReleasePhase.ROLLING_BACK: "rolling-back",
    ReleasePhase.DONE: "done",
}
"""What a release is found by: coarser than its phase, since every change costs an event."""


class Interrupted(Exception):
    """A rollback was requested; what was being waited for no longer matters."""


class StageBreached(Exception):
    """The canary must not go on; the message says why."""


class ReleaseContext:
    """What a release knows, changed only by its own main loop; messages only set intents."""

    def __init__(self, request: ReleaseRequest) -> None:
        self.request = request
        self.phase = ReleasePhase.ADMITTING
        self.position = Position.UNTOUCHED
        self.admitted: Admittance | None = None
        self.canary_revision = 0
        self._split: TrafficSplit | None = None
        self.traffic: MeshState | None = None
        self._splits_to_tell: list[dict[str, Any]] = []
        self.stage_weight: int | None = None
        self.verdict: StageVerdict | None = None
        self.wealth: dict[str, CarriedWealth] = {}
        self.reload_seconds: float | None = None
        self.outcome: Outcome | None = None
        self.reason = ""
        self.held = False
        self.had_traffic = False
        self.rollback_request: RollbackRequest | None = None
        self.rollback_asked_at: datetime | None = None
        self.rollback_seconds: float | None = None
        self.traffic_is_back = False
        self.interruptible = True
        self.promote_requested = False
        self.paused = False
        self.gates: ApprovalGates | None = None
        self.breach: str | None = None
        self.granted: tuple[InstanceRef, ...] = ()
        self.steps: list[Step] = []
        self.evidence: tuple[Evidence, ...] = ()
        self.notices: list[workflow.ActivityHandle[None]] = []
        self._sequence = 0
        self._searchable = _PREPARING

    # --- identity of commands -------------------------------------------------------------------

    def next_fence(self) -> Fence:
        """Allocate the fence of the next command: newer than every one before it."""
        self._sequence += 1
        return Fence(epoch=self.admittance.epoch, sequence=self._sequence)

    def operation_id(self, fence: Fence) -> str:
        """Name a command for ever, so that its repeat is recognised."""
        return f"{self.request.release_id}:{fence.sequence}"

    @property
    def admittance(self) -> Admittance:
        """What admission answered; a programming error before it did."""
        if self.admitted is None:
            raise RuntimeError("the release is not admitted yet")
        return self.admitted

    # --- waiting --------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether a rollback was requested and may take effect now."""
        return self.interruptible and self.rollback_request is not None

    @property
    def breached(self) -> bool:
        """Whether a judge in the background found a breach that may take effect now."""
        return self.interruptible and self.breach is not None

    @property
    def is_final(self) -> bool:
        """Whether the release went through and nothing can turn it back any more."""
        return not self.interruptible and self.outcome is Outcome.PROMOTED

    def checkpoint(self) -> None:
        """Raise when a rollback or a cancellation is due, or a judge in the background found a breach.

        A cancellation can be swallowed by an activity that completes at the same moment, so it is asked
        for after every step instead of being trusted to arrive.
        """
        if self.interrupted:
            raise Interrupted
        if self.breached:
            raise StageBreached(self.breach)
        if self.interruptible and workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError

    async def wait(
        self, condition: Callable[[], bool], *, timeout: timedelta | None = None, summary: str | None = None
    ) -> bool:
        """Wait for a condition; returns False when the time was up first. Raises what `checkpoint` does."""
        try:
            await workflow.wait_condition(
                lambda: condition() or self.interrupted or self.breached,
                timeout=timeout,
                timeout_summary=summary,
            )
        except TimeoutError:
            self.checkpoint()
            return False
        self.checkpoint()
        return True

    # --- activities -----------------------------------------------------------------------------

    def start(
        self,
        call: Call[Argument, Answer],
        argument: Argument,
        *,
        summary: str,
        give_up_after: timedelta | None = None,
    ) -> "workflow.ActivityHandle[Answer]":
        """Start an activity without waiting for it; its failure is kept until somebody asks."""
        handle: workflow.ActivityHandle[Answer] = workflow.start_activity(
            call.name,
            argument,
            result_type=call.answer,
            task_queue=mesh_queue(workflow.info().task_queue) if call.on_mesh_queue else None,
            start_to_close_timeout=call.longest_attempt,
            schedule_to_close_timeout=call.give_up_after if give_up_after is None else give_up_after,
            heartbeat_timeout=call.heartbeat,
            retry_policy=call.retry,
            summary=summary,
        )
        handle.add_done_callback(_take_note)
        return handle

    async def execute(
        self,
        call: Call[Argument, Answer],
        argument: Argument,
        *,
        summary: str,
        give_up_after: timedelta | None = None,
    ) -> Answer:
        """Run an activity to its end, or to an interruption.

        An interrupted long wait is cancelled. A short write is left to end by itself: whatever it still
        does is overruled by its fence.
        """
        handle = self.start(call, argument, summary=summary, give_up_after=give_up_after)
        try:
            await self.wait(handle.done)
        except (Interrupted, StageBreached, asyncio.CancelledError):
            if call.heartbeat is not None:
                handle.cancel()
            raise
        return handle.result()

    async def look_up(self, call: Call[Argument, Answer], argument: Argument, *, summary: str) -> Answer:
        """Run a short, harmless question inside the workflow's worker; costs one event."""
        answer: Answer = await workflow.execute_local_activity(
            call.name,
            argument,
            result_type=call.answer,
            start_to_close_timeout=call.longest_attempt,
            schedule_to_close_timeout=call.give_up_after,
            retry_policy=call.retry,
            summary=summary,
        )
        self.checkpoint()
        return answer

    async def execute_to_the_end(
        self, call: Call[Argument, Answer], argument: Argument, *, summary: str
    ) -> Answer:
        """Run an activity that must not be given up, not even when the release is cancelled."""
        handle = self.start(call, argument, summary=summary)
        while not handle.done():
            try:
                await workflow.wait_condition(handle.done)
            except asyncio.CancelledError:
                continue  # `checkpoint` still sees the cancellation
        return handle.result()

    def recorded(self, rows: tuple[Evidence, ...]) -> None:
        """Forget evidence that the registry has. Rows whose fate is unknown stay, to be sent once more."""
        known = {row.operation_id for row in rows}
        self.evidence = tuple(row for row in self.evidence if row.operation_id not in known)

    # --- the story ------------------------------------------------------------------------------

    @property
    def split(self) -> TrafficSplit | None:
        """What the mesh was last read back to do; every change goes with its time into the evidence."""
        return self._split

    @split.setter
    def split(self, split: TrafficSplit) -> None:
        self._split = split
        self._splits_to_tell.append(
            {"at": workflow.now().isoformat(), "split": split.model_dump(mode="json")}
        )

    def enter(self, phase: ReleasePhase, text: str) -> None:
        """Move to a phase, for the status, the Temporal UI and searches."""
        self.phase = phase
        self.tell(text)
        observing = phase is ReleasePhase.OBSERVING
        stage = f"{phase} {self.stage_weight} %" if observing else _SEARCHABLE[phase]
        if stage != self._searchable:
            self._searchable = stage
            workflow.upsert_search_attributes([STAGE_ATTRIBUTE.value_set(stage)])

    def tell(self, text: str, *, operator: str = "", **data: Any) -> None:
        """Add a line to the release's story and a row to its evidence; `operator` is who did it, if known."""
        now = workflow.now()
        self.steps.append(Step(at=now, text=text))
        number = len(self.steps)
        data |= {"at": now.isoformat(), "way_back": way_back(self.position, self.reload_seconds)}
        if self._splits_to_tell:
            data["splits"], self._splits_to_tell = self._splits_to_tell, []
        row = Evidence(
            service=self.request.service,
            release_id=self.request.release_id,
            operation_id=f"{self.request.release_id}:step:{number}",
            step=str(self.phase),
            operator=operator or self.request.operator,
            summary=text,
            data=data,
        )
        self.evidence = (*self.evidence, row)
        workflow.set_current_details(self._markdown())

    def tell_progress(self, progress: FleetProgress) -> None:
        """Keep what each instance took as evidence."""
        seconds = [sum(one.phase_seconds.values()) for one in progress.instances]
        self.tell(
            f"{self.phase}: {len(progress.instances)} instances, slowest {max(seconds, default=0):.1f} s",
            instances=[one.model_dump(mode="json") for one in progress.instances],
        )

    def read_back(self, state: MeshState) -> None:
        """Keep what the mesh says it does: for the status, and to notice when somebody else changes it."""
        self.split, self.traffic = state.split, state

    def settle(self, outcome: Outcome, reason: str) -> None:
        """Record how the release ends, for callers who wait and for searches."""
        self.outcome, self.reason = outcome, reason
        workflow.upsert_search_attributes([VERDICT_ATTRIBUTE.value_set(str(outcome))])

    def status(self) -> ReleaseStatus:
        """Return everything a person or a script asks of a release."""
        return ReleaseStatus(
            release_id=self.request.release_id,
            service=self.request.service,
            artifact_id=self.request.artifact_id,
            phase=self.phase,
            stage_weight=self.stage_weight,
            split=self.split,
            verdict=self.verdict,
            outcome=self.outcome,
            reason=self.reason,
            way_back=way_back(self.position, self.reload_seconds),
            held=self.held,
            paused=self.paused,
            waiting_for=self._waiting_for(),
            steps=tuple(self.steps),
        )

    def _waiting_for(self) -> str:
        if self.phase is not ReleasePhase.AWAITING_APPROVAL or self.gates is None:
            return ""
        weight = self.gates.next_closed
        if weight is None:
            return ""
        service = self.request.service
        command = f"weightshift release approve {service.model} -e {service.environment}"
        return f"{self.gates.waiting_for(weight)} before {weight} %: {command}"

    def _markdown(self) -> str:
        split = f"stable/canary **{self.split}**" if self.split else "unchanged"
        lines = [
            f"**{self.request.artifact_id}** to {self.request.service}: **{self.phase}**, traffic {split}, "
            f"way back: {way_back(self.position, self.reload_seconds)}",
            "",
            *(f"- {step.at:%H:%M:%S} {step.text}" for step in self.steps),
        ]
        return "\n".join(lines)


def _take_note(handle: "asyncio.Task[Any]") -> None:
    """Look at a left-behind activity's failure, so that it is not reported as never retrieved."""
    if not handle.cancelled():
        handle.exception()
