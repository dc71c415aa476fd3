"""Where a release waits for people: verifying what they gave, and holding until enough of them did."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.options import CHECK_APPROVALS
    from weightshift.contracts.approval import ApprovalCheck, CheckedApproval
    from weightshift.contracts.notification import NotificationEvent
    from weightshift.contracts.release import GivenApproval, ReleasePhase
    from workflows.approvals import ApprovalGates
    from workflows.context import ReleaseContext
    from workflows.notices import notify
    from workflows.observe import StageObservation

_REFUSED = "ApprovalInvalid"
_JUDGED_WHILE_PAUSED = "a stage goes on being judged while it is paused after its end"


def open_gates(context: ReleaseContext) -> None:
    """Set up what has to be approved, and count what the request brought along.

    A first release moves all traffic at once, so that it has one gate, the strictest of its plan.
    """
    required = context.request.plan.required_approvals()
    if context.admittance.first:
        required = ((100, max(people for _, people in required)),)
    context.gates = ApprovalGates(required, operator=context.request.operator)
    for approval in context.admittance.approvals:
        if (problem := context.gates.refusal(approval)) is None:
            _count(context, approval)
        else:
            context.tell(f"approval {approval.approval_id} was not counted: {problem}")


def may_approve(context: ReleaseContext) -> None:
    """Refuse an approval that nothing waits for, or could ever. Raises `ApplicationError`."""
    if problem := context.approval_refusal():
        raise ApplicationError(problem, type=_REFUSED)


async def count_approval(context: ReleaseContext, given: GivenApproval) -> None:
    """Verify an approval at the registry and count it; a refusal leaves the release as it was.

    Raises `ApplicationError` with the reason, and `ActivityError` when the registry does not answer.
    """
    request = context.request
    check = ApprovalCheck(
        service=request.service,
        release_id=request.release_id,
        artifact_id=request.artifact_id,
        approval_ids=(given.approval_id,),
    )
    answer = await context.start(CHECK_APPROVALS, check, summary=f"check approval {given.approval_id}")
    may_approve(context)  # the release went on meanwhile
    for approval in answer.approvals:
        problem = context.gates.refusal(approval) if context.gates else None
        if problem is not None:
            raise ApplicationError(problem, type=_REFUSED)
        _count(context, approval)


def _count(context: ReleaseContext, approval: CheckedApproval) -> None:
    if context.gates is not None:
        text = context.gates.count(approval)
        context.tell(text, operator=approval.operator, approval=approval.model_dump(mode="json"))


async def pass_gate(context: ReleaseContext, weight: int, before: StageObservation | None) -> None:
    """Return once enough people approved this weight and nobody pauses the release.

    While it waits, the stage before goes on being judged. Raises `StageBreached`, `Interrupted`.
    """
    gates = context.gates
    if gates is not None and not gates.is_open(weight):
        context.held = True
        waiting = f"waiting for {gates.waiting_for(weight)} before {weight} %"
        context.enter(ReleasePhase.AWAITING_APPROVAL, waiting)
        notify(context, NotificationEvent.HOLD, waiting)
        try:
            if before is None:
                await context.wait(lambda: gates.is_open(weight))
            else:
                await before.watch(until=lambda: gates.is_open(weight) and not context.paused)
        finally:
            context.held = False
    await wait_while_paused(context, before)


async def wait_while_paused(context: ReleaseContext, before: StageObservation | None) -> None:
    """Return once nobody pauses the release; the stage before is judged on. Raises what `watch` does."""
    if before is not None and context.paused and workflow.patched(_JUDGED_WHILE_PAUSED):
        await before.watch(until=lambda: not context.paused)
    await context.wait(lambda: not context.paused)
