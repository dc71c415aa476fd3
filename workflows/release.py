"""The release workflow: messages record intent, the main loop acts, and rollback wins in every state."""

import asyncio
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from weightshift.contracts.plan import Plan
    from weightshift.contracts.release import (
        GivenApproval,
        Intervention,
        Outcome,
        ReleasePhase,
        ReleaseRequest,
        ReleaseResult,
        ReleaseStatus,
        RollbackRequest,
    )
    from workflows.context import Interrupted, ReleaseContext, StageBreached, handlers_finished
    from workflows.first_release import run_first_release
    from workflows.forward import admit, finish, prepare_canary, shift_traffic
    from workflows.human_gate import count_approval, may_approve
    from workflows.notices import settle_notices
    from workflows.pods import scale_up
    from workflows.promotion import retain, take_over
    from workflows.recovery import describe, roll_back

_ROLLBACK = "rollback"
_PROMOTABLE = (ReleasePhase.OBSERVING, ReleasePhase.PARACHUTE)


@workflow.defn(name="Release")
class ReleaseWorkflow:
    """One release of one artifact to one service."""

    @workflow.init
    def __init__(self, request: ReleaseRequest) -> None:
        self._context = ReleaseContext(request)

    @workflow.run
    async def run(self, request: ReleaseRequest) -> ReleaseResult:
        """Take the artifact to the end, or traffic back to where it was."""
        context = self._context
        try:
            await self._forward()
        except Interrupted:
            asked = context.rollback_request or RollbackRequest()
            await roll_back(
                context, f"{asked.reason} ({asked.operator})", context.rollback_asked_at or workflow.now()
            )
            await finish(context)
        except (StageBreached, FailureError, asyncio.CancelledError) as error:
            # Nothing else is compensated: a bug must stay visible as a failing workflow task.
            if context.admitted is None:
                raise
            await roll_back(context, describe(error), workflow.now())
            await finish(context)
        await handlers_finished()
        await settle_notices(context)
        return ReleaseResult(
            release_id=request.release_id,
            outcome=context.outcome or Outcome.REFUSED,
            reason=context.reason,
            split=context.split,
            rollback_seconds=context.rollback_seconds,
        )

    async def _forward(self) -> None:
        context = self._context
        await admit(context)
        await scale_up(context)
        if context.admittance.first:
            await run_first_release(context)
        else:
            await prepare_canary(context)
            last_stage = await shift_traffic(context)
            await take_over(context, last_stage)
            await retain(context)
        await finish(context)

    @workflow.signal(dynamic=True, description="`rollback`: take traffic back now, whatever it carries.")
    def receive(self, name: str, payloads: Sequence[RawValue]) -> None:
        """Record the intent of a `rollback` signal, however it was typed; other names mean nothing.

        Raw payloads, because one that cannot be decoded would otherwise be dropped, and one too many would
        stop the workflow for good.
        """
        if name.strip().lower() == _ROLLBACK:
            self._ask_for_rollback(RollbackRequest.from_payloads([value.payload.data for value in payloads]))
        else:
            workflow.logger.warning("signal %r is not known and was ignored", name[:100])

    def _ask_for_rollback(self, rollback: RollbackRequest) -> None:
        """Keep the first request; a repeat changes nothing."""
        if self._context.rollback_request is None:
            self._context.rollback_request = rollback
            self._context.rollback_asked_at = workflow.now()
            if self._context.is_final:
                self._tell_too_late(rollback)

    def _tell_too_late(self, rollback: RollbackRequest) -> None:
        """Answer a signal, which gets no other answer, where the status shows it."""
        service = self._context.request.service
        self._context.tell(
            f"a rollback came too late: {rollback.reason} ({rollback.operator}); this release went through, "
            f"go back with `weightshift release rollback {service.model} -e {service.environment}`",
            operator=rollback.operator,
        )

    @workflow.update(name="rollback", description="Take traffic back and answer when it is read back.")
    async def rollback_and_wait(self, rollback: RollbackRequest = RollbackRequest()) -> ReleaseStatus:  # noqa: B008
        """Record the intent and answer when traffic is back; a repeat gets the same answer."""
        self._ask_for_rollback(rollback)
        await workflow.wait_condition(
            lambda: self._context.traffic_is_back or self._context.phase is ReleasePhase.DONE
        )
        return self._context.status()

    @rollback_and_wait.validator
    def _may_roll_back(self, rollback: RollbackRequest = RollbackRequest()) -> None:  # noqa: B008
        if self._context.is_final:
            raise ApplicationError("the release has ended; release the previous artifact", type="Conflict")

    @workflow.update(description="Count an approval, by its id, for the next gate that waits for people.")
    async def approve(self, given: GivenApproval) -> ReleaseStatus:
        """Verify and count an approval; a refused one changes nothing."""
        await count_approval(self._context, given)
        return self._context.status()

    @approve.validator
    def _may_approve(self, given: GivenApproval) -> None:
        may_approve(self._context)

    @workflow.update(description="Skip the rest of the current observation window, or of the parachute.")
    def promote(self, by: Intervention = Intervention()) -> ReleaseStatus:  # noqa: B008
        """Record the intent to go on."""
        self._context.promote_requested = True
        self._tell_intervention("promote: go on", by)
        return self._context.status()

    @promote.validator
    def _may_promote(self, by: Intervention = Intervention()) -> None:  # noqa: B008
        if self._context.phase not in _PROMOTABLE:
            raise ApplicationError(f"nothing to skip while {self._context.phase}", type="InvalidInput")

    @workflow.update(description="Do not advance to the next stage; gates keep judging.")
    def pause(self, by: Intervention = Intervention()) -> ReleaseStatus:  # noqa: B008
        """Record the intent to stay."""
        self._context.pause()
        self._tell_intervention("paused", by)
        return self._context.status()

    @workflow.update(description="Advance again after a pause.")
    def resume(self, by: Intervention = Intervention()) -> ReleaseStatus:  # noqa: B008
        """Withdraw the intent to stay."""
        self._context.resume()
        self._tell_intervention("resumed", by)
        return self._context.status()

    def _tell_intervention(self, what: str, by: Intervention) -> None:
        because = f": {by.reason}" if by.reason else ""
        self._context.tell(f"{what} ({by.operator or 'unknown'}){because}", operator=by.operator)

    @workflow.query(description="Phase, traffic as read back, verdict, way back, and the story so far.")
    def status(self) -> ReleaseStatus:
        """Return where the release is."""
        return self._context.status()

    @workflow.query(description="The plan with every default filled in.")
    def plan(self) -> Plan:
        """Return the plan."""
        return self._context.request.plan
