"""The way back: cut, restore, seal. Carries out what `rollback.plan_rollback` decides, without end."""

import asyncio
from datetime import datetime, timedelta

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.options import CHECK_CAPACITY, CUT, READ_MESH, RESTORE, ROLLBACK_STUCK, SEAL, SHIFT
    from weightshift.contracts.commands import MeshWrite, PublishCommand
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.instance import CandidatePhase
    from weightshift.contracts.notification import NotificationEvent
    from weightshift.contracts.release import Outcome, ReleasePhase
    from weightshift.contracts.target import Publication, Target
    from weightshift.contracts.traffic import TrafficSplit
    from weightshift.errors import ArtifactNotReady, StaleFence, WeightshiftError
    from workflows.capacity import whole_canary
    from workflows.context import ReleaseContext, wait_out
    from workflows.forward import fleet_wait
    from workflows.notices import notify
    from workflows.rollback import PARACHUTES, Position, canary_share, plan_rollback
    from workflows.waves import granted_share, revoke_waves

_RETRY_PAUSE = timedelta(seconds=10)
_LONGEST_RETRY_PAUSE = timedelta(minutes=5)
_RESTORES_BACK_OFF = "attempts to restore stable are made further and further apart"
_PARACHUTE_LOOKED_AT = "a parachute is looked at before traffic jumps to it"
_JUMP_MAY_FAIL = "a rollback does without a parachute that the mesh does not let traffic jump to"
_SEALS_INSIST = "a seal that the registry refuses for now is tried again, and traffic waits for it"
_SEALED_OTHERWISE = "where the healthy artifact may not be published, its place is sealed with the candidate"


async def roll_back(context: ReleaseContext, reason: str, decided_at: datetime) -> None:
    """Bring traffic back to the healthy generation, then make sure that no late command undoes it."""
    context.interruptible = False
    context.outcome, context.reason = None, reason  # a release that was promoted is not any more
    context.enter(ReleasePhase.ROLLING_BACK, f"rolling back: {reason}")
    notify(context, NotificationEvent.ROLLBACK, reason)
    await _look_at_parachute(context)
    plan = plan_rollback(context.position)
    if plan.cut_to is not None:
        if await _cut_at_once(context, TrafficSplit.all_to(plan.cut_to)):
            _traffic_is_back(context, decided_at)
        else:
            context.position = Position.RETIRING
            plan = plan_rollback(context.position)
    await _share_out(context, reason)
    if plan.restore_stable and await _restore_stable(context, may_swap=plan.cut_to is not Cohort.STABLE):
        await _cut(context, TrafficSplit.all_to(Cohort.STABLE))
        _traffic_is_back(context, decided_at)
    if plan.seal_canary:
        await _seal(context, Cohort.CANARY)
    by_request = context.rollback_request is not None
    refused = not context.had_traffic and not by_request
    context.traffic_is_back = True
    if context.position is Position.RETURNING_FROM_CANARY:
        reason = f"{reason}; {await _where_it_stays(context)}"
    elif context.unpublishable:
        reason = f"{reason}; {_what_remains(context, stable_was_touched=plan.restore_stable)}"
    elif Cohort.STABLE in context.overtaken:
        reason = (
            f"{reason}; stable is left to a newer command and traffic at {context.split}, see its targets"
        )
    elif context.split is not None and context.split.canary:
        reason = f"{reason}; traffic is left at {context.split} by a newer command, see the mesh"
    context.position = Position.TAKEN_BACK
    context.settle(Outcome.REFUSED if refused else Outcome.ROLLED_BACK, reason)


async def _where_it_stays(context: ReleaseContext) -> str:
    """Say where traffic is, which somebody may have moved meanwhile, and how to go on."""
    service = context.request.service
    state = await context.glance(READ_MESH, service, summary="where traffic stays")
    if state is not None:
        context.read_back(state)
    return (
        f"traffic stays at {context.split}; try again with `weightshift release rollback {service.model} "
        f"-e {service.environment} --to {context.request.artifact_id}`"
    )


def _traffic_is_back(context: ReleaseContext, decided_at: datetime) -> None:
    if not context.traffic_is_back:
        context.rollback_seconds = (workflow.now() - decided_at).total_seconds()
        context.traffic_is_back = True


async def _look_at_parachute(context: ReleaseContext) -> None:
    """Do without a parachute that would break: traffic never jumps to a pool of which a part is missing.

    It was whole when it was packed, perhaps days ago. Where nobody can say how it is now it is trusted.
    """
    if context.position not in PARACHUTES or not workflow.patched(_PARACHUTE_LOOKED_AT):
        return
    capacity = await context.glance(
        CHECK_CAPACITY,
        whole_canary(context),
        summary="whether the parachute is whole",
    )
    if capacity is not None and capacity.missing:
        context.position = Position.RETIRING
        context.tell(f"the parachute is not whole, so stable is restored: {'; '.join(capacity.missing)}")


async def _share_out(context: ReleaseContext, reason: str) -> None:
    """Where only a part of the capacity is healthy, give it what it can carry until the rest is back."""
    granted = granted_share(context.granted, context.admittance.stable)
    share = canary_share(context.position, context.request.plan, granted=granted)
    if share is not None:
        await _cut_at_once(context, context.request.plan.split(share))
    returns_in_waves = context.position is Position.RETURNING_FROM_CANARY and bool(context.granted)
    if context.position is Position.STABLE_IN_WAVES or returns_in_waves:
        await revoke_waves(context, reason)


async def _cut_at_once(context: ReleaseContext, split: TrafficSplit) -> bool:
    """Cut before anything is restored; returns False where a parachute is up and traffic does not get to it.

    Its route may have lost the canary, or the mesh not answer for a minute. Traffic is on stable then, which
    can be restored without the mesh. A jump that was accepted and that some proxy does not show is one.
    """
    if context.position not in PARACHUTES or not workflow.patched(_JUMP_MAY_FAIL):
        await _cut(context, split)
        return True
    try:
        await _cut(context, split, must_happen=False)
    except ActivityError as error:
        context.tell(f"traffic cannot jump to the parachute, so stable is restored: {describe(error)}")
        return False
    return True


async def _cut(context: ReleaseContext, split: TrafficSplit, *, must_happen: bool = True) -> None:
    """Write a split; only a newer command may win. Retries without end, unless it need not happen.

    Raises `ActivityError` for one that need not, and does not.
    """
    command = MeshWrite(
        service=context.request.service,
        split=split,
        fence=context.next_fence(),
        must_happen=must_happen,
        may_go_unconfirmed=True,
    )
    try:
        state = await context.execute_to_the_end(
            CUT if must_happen else SHIFT, command, summary=f"rollback: stable/canary {split}"
        )
    except ActivityError as error:
        if not must_happen and not _failed_with(error, StaleFence):
            raise
        state = await context.execute_to_the_end(
            READ_MESH, context.request.service, summary="rollback: read back what a newer command does"
        )
        context.read_back(state)
        context.tell(f"traffic is {state.split} and was not moved to {split}: {describe(error)}")
        return
    context.read_back(state)
    shown = "read back from the mesh" if state.confirmed else "accepted, but not shown yet by every proxy"
    context.tell(f"{shown}: stable/canary {state.split}")


def _what_remains(context: ReleaseContext, *, stable_was_touched: bool) -> str:
    """Say what people have to do where the artifact to go back to may not be published any more."""
    service = context.request.service
    serving = context.left_on_stable if stable_was_touched else context.unpublishable
    return (
        f"{context.unpublishable} may not be published any more, so stable "
        f"{f'serves {serving}' if serving else 'is left as it was'} and traffic is {context.split}; release "
        f"another artifact: weightshift release rollback {service.model} -e {service.environment} "
        "--to ARTIFACT"
    )


async def _seal(context: ReleaseContext, cohort: Cohort, *, with_candidate: bool = True) -> Target | None:
    """Publish the healthy artifact at a higher revision, so that no late candidate can win.

    One that was rejected meanwhile is not published again: the candidate is then, as the only other one there
    is, so that nothing older counts and every instance has one artifact to serve. None where neither may be.
    """
    healthy = context.admittance.targets.stable
    if healthy is None:
        return None
    try:
        return await _publish_seal(context, cohort, healthy.artifact_id)
    except ActivityError as error:
        context.tell(f"{cohort} not sealed: {error.cause}")
        if _failed_with(error, StaleFence) and workflow.patched(_SEALS_INSIST):
            context.overtaken.add(cohort)
        if not _failed_with(error, ArtifactNotReady) or not workflow.patched(_SEALED_OTHERWISE):
            return None
    context.unpublishable = healthy.artifact_id
    if not with_candidate:
        return None
    try:
        return await _publish_seal(context, cohort, context.request.artifact_id)
    except ActivityError as error:
        context.tell(f"{cohort} not sealed: {error.cause}")
        return None


async def _publish_seal(context: ReleaseContext, cohort: Cohort, artifact_id: str) -> Target:
    """Publish as often as it takes, each attempt a command of its own: one that is repeated fares no better.

    Raises `ActivityError` for what no attempt can change: a newer command, or an artifact that is not ready.
    """
    pause = _RETRY_PAUSE
    while True:
        try:
            return await _publish_once(context, cohort, artifact_id)
        except ActivityError as error:
            if _failed_with(error, StaleFence, ArtifactNotReady) or not workflow.patched(_SEALS_INSIST):
                raise
            context.tell(f"{cohort} not sealed yet: {error.cause}")
            workflow.metric_meter().create_counter(*ROLLBACK_STUCK).add(1)
            await wait_out(pause)
            pause = min(2 * pause, _LONGEST_RETRY_PAUSE)


async def _publish_once(context: ReleaseContext, cohort: Cohort, artifact_id: str) -> Target:
    fence = context.next_fence()
    publication = Publication(
        service=context.request.service,
        cohort=cohort,
        artifact_id=artifact_id,
        raise_serve_floor=cohort is Cohort.CANARY,
        fence=fence,
        operation_id=context.operation_id(fence),
        release_id=context.request.release_id,
        operator=context.request.operator,
        reason="rollback",
    )
    command = PublishCommand(publication=publication, evidence=context.evidence)
    target = await context.execute_to_the_end(SEAL, command, summary=f"seal {cohort} with {artifact_id}")
    context.recorded(command.evidence)
    return target


def _failed_with(error: ActivityError, *kinds: type[WeightshiftError]) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type in {kind.__name__ for kind in kinds}


async def _restore_stable(context: ReleaseContext, *, may_swap: bool) -> bool:
    """Have stable serve the healthy artifact again, however long that takes; traffic stays where it is.

    A failure seals anew before the next attempt: a higher revision makes the instances try again, less and
    less often, since Temporal ends a workflow whose history grows without bounds. Returns
    whether traffic may go to stable. Without `may_swap` stable carries it already, and is left as it is
    where the healthy artifact may not be published. Traffic goes to no stable that a newer command has.
    """
    pause = _RETRY_PAUSE
    while True:
        target = await _seal(context, Cohort.STABLE, with_candidate=may_swap)
        if target is None:
            return not context.unpublishable and Cohort.STABLE not in context.overtaken
        wait = fleet_wait(
            context, Cohort.STABLE, target.revision, CandidatePhase.DRY_RUNNING, tolerate_lost=True
        )
        try:
            await context.execute_to_the_end(
                RESTORE, wait, summary=f"restore {target.artifact_id} on stable, revision {target.revision}"
            )
        except ActivityError as error:
            context.tell(f"stable not restored yet: {error.cause}")
            workflow.metric_meter().create_counter(*ROLLBACK_STUCK).add(1)
            await wait_out(pause)
            if workflow.patched(_RESTORES_BACK_OFF):
                pause = min(2 * pause, _LONGEST_RETRY_PAUSE)
            continue
        context.left_on_stable = target.artifact_id
        context.tell(f"stable serves {target.artifact_id} again, revision {target.revision}")
        return True


def describe(error: BaseException) -> str:
    """Return why a release turned back, in one line for people."""
    if isinstance(error, asyncio.CancelledError):
        because = workflow.cancellation_reason()
        return f"the workflow was cancelled: {because}" if because else "the workflow was cancelled"
    cause = error.cause if isinstance(error, ActivityError) and error.cause else error
    if isinstance(cause, exceptions.TimeoutError):
        waited_for = "; ".join(str(detail) for detail in cause.last_heartbeat_details)
        return f"not done in time: {waited_for}" if waited_for else "not done in time"
    if isinstance(cause, ApplicationError):
        return f"{cause.type}: {cause.message}" if cause.type else cause.message
    return str(cause) or type(cause).__name__
