"""Handing over to stable once the canary has proved itself, and keeping the way back for a while."""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.options import ADOPT, SWAP, WARM_UP
    from weightshift.contracts.commands import Adoption, JudgedWait
    from weightshift.contracts.control import Control
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.instance import CandidatePhase
    from weightshift.contracts.notification import NotificationEvent
    from weightshift.contracts.plan import OnPartial, Promotion
    from weightshift.contracts.release import Outcome, ReleasePhase
    from weightshift.contracts.target import Target
    from weightshift.contracts.traffic import MeshState, TrafficSplit
    from weightshift.errors import CanaryCarriesTraffic
    from workflows.context import ReleaseContext, StageBreached
    from workflows.forward import fleet_wait, publication, publish, shift
    from workflows.human_gate import wait_while_paused
    from workflows.notices import notify
    from workflows.observe import StageObservation
    from workflows.rollback import Position
    from workflows.waves import swap_in_waves


async def take_over(context: ReleaseContext, last_stage: StageObservation | None) -> None:
    """Swap stable, while the canary carries everything or in waves, then give the traffic back to it."""
    await wait_while_paused(context, last_stage)
    context.stage_weight = None
    if context.request.plan.promotion is Promotion.IN_PLACE:
        await _swap_under_traffic(context, last_stage)
    else:
        await _end_control(context)
        await _swap_idle(context, last_stage)
    artifact_id = context.request.artifact_id
    context.enter(ReleasePhase.RETURNING, "returning traffic to stable")
    await shift(context, TrafficSplit.all_to(Cohort.STABLE))
    context.position = Position.STABLE_SWAPPING
    context.settle(Outcome.PROMOTED, f"{artifact_id} serves on stable")
    promoted = f"promoted: stable serves {artifact_id}, traffic {context.split}"
    context.tell(promoted)
    notify(context, NotificationEvent.STAGE, promoted)


async def _end_control(context: ReleaseContext) -> None:
    """Give stable nothing more to answer: it must be idle while it swaps."""
    split = context.request.plan.split(100)
    if context.admittance.control is Control.NONE or context.split == split:
        return
    context.enter(ReleasePhase.PROMOTING, "canary carries everything, nothing is compared any more")
    await shift(context, split)


async def _swap_idle(context: ReleaseContext, last_stage: StageObservation | None) -> None:
    """Swap all of stable; the canary carries everything, and is judged on until stable is warm."""
    target = await _publish_to_stable(context, requires_grant=False)
    context.advance(Position.STABLE_SWAPPING)
    if last_stage is not None and last_stage.is_judged and context.admittance.joined_waits:
        await _warm_stable_judged(context, target, last_stage)
    else:
        await _warm_stable(context, target)


async def _swap_under_traffic(context: ReleaseContext, last_stage: StageObservation | None) -> None:
    target = await _publish_to_stable(context, requires_grant=True)
    await swap_in_waves(context, target, last_stage)
    context.advance(Position.STABLE_SWAPPING)
    # Instances that joined meanwhile are in no wave; those that were in one adopt it without a load.
    artifact_id = context.request.artifact_id
    target = await publish(context, Cohort.STABLE, artifact_id, expected_revision=target.revision)
    await _warm_stable(context, target)


async def _publish_to_stable(context: ReleaseContext, *, requires_grant: bool) -> Target:
    artifact_id, stable = context.request.artifact_id, context.admittance.targets.stable
    context.advance(Position.STABLE_PUBLISH_IN_FLIGHT)
    context.enter(ReleasePhase.PROMOTING, f"publishing {artifact_id} to stable")
    return await publish(
        context,
        Cohort.STABLE,
        artifact_id,
        expected_revision=stable.revision if stable else 0,
        requires_grant=requires_grant,
    )


async def _warm_stable(context: ReleaseContext, target: Target) -> None:
    await context.execute(
        WARM_UP,
        fleet_wait(context, Cohort.STABLE, target.revision, CandidatePhase.DRY_RUNNING),
        summary=f"{context.phase}: warm-up revision {target.revision} on stable",
        give_up_after=context.request.plan.load_deadline,
    )


async def _warm_stable_judged(context: ReleaseContext, target: Target, stage: StageObservation) -> None:
    """Wait for stable and judge in one activity, which costs no events. Raises `StageBreached`."""
    answer = await context.execute(
        SWAP,
        JudgedWait(
            wait=fleet_wait(context, Cohort.STABLE, target.revision, CandidatePhase.DRY_RUNNING),
            observation=stage.watching(),
        ),
        summary=f"{context.phase}: warm-up revision {target.revision} on stable, canary judged on",
        give_up_after=context.request.plan.load_deadline,
    )
    if answer.observed is not None:
        stage.keep(answer.observed)
        raise StageBreached(answer.observed.verdict.reason)


async def retain(context: ReleaseContext) -> None:
    """Keep the previous artifact warm on the canary for a while, then retire it.

    The release is promoted already: when the parachute cannot be packed, the way back is a reload. A plan
    that retains nothing goes straight to retirement.
    """
    if context.request.plan.retain:
        await _parachute(context)
    await _retire(context)


async def _parachute(context: ReleaseContext) -> None:
    stable = context.admittance.targets.stable
    previous = stable.artifact_id if stable else context.request.artifact_id
    context.promote_requested = False
    context.enter(ReleasePhase.PARACHUTE, f"warming {previous} on canary as the way back")
    try:
        await _warm_canary(context, previous, tolerate_lost=False)
    except ActivityError as error:
        context.tell(f"no parachute: {error.cause}")
        return
    plan = context.request.plan
    is_small = plan.promotion is Promotion.IN_PLACE and plan.on_partial is OnPartial.PROPORTIONAL
    context.position = Position.SMALL_PARACHUTE_UP if is_small else Position.PARACHUTE_UP
    context.way_back_until = workflow.now() + plan.retain
    await context.wait(
        lambda: context.promote_requested,
        timeout=plan.retain,
        summary=f"parachute: {previous} stays warm",
    )


async def _retire(context: ReleaseContext) -> None:
    """Let go of the parachute: the canary takes the promoted artifact, so that both pools are alike."""
    context.position = Position.RETIRING
    artifact_id = context.request.artifact_id
    context.enter(ReleasePhase.RETIRING, f"retiring: canary adopts {artifact_id}")
    try:
        if context.admittance.joined_waits:
            await _adopt(context, artifact_id)
        else:
            await _warm_canary(context, artifact_id, tolerate_lost=True)
    except ActivityError as error:
        _correct_what_serves(context, error)
        context.tell(f"canary did not adopt {artifact_id}: {error.cause}")


def _correct_what_serves(context: ReleaseContext, error: ActivityError) -> None:
    """Take back what was said at the promotion where traffic was moved to the canary past the release."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == CanaryCarriesTraffic.__name__:
        context.read_back(MeshState.model_validate(cause.details[0]))
        context.reason = f"{context.request.artifact_id} is on stable, but {cause.message}"


async def _adopt(context: ReleaseContext, artifact_id: str) -> None:
    """Publish to the idle canary and wait for it, in one activity: its revision is of no more use."""
    command = publication(context, Cohort.CANARY, artifact_id, expected_revision=context.canary_revision)
    wait = fleet_wait(context, Cohort.CANARY, 0, CandidatePhase.DRY_RUNNING, tolerate_lost=True)
    await context.execute(
        ADOPT,
        Adoption(publish=command, wait=wait),
        summary=f"{context.phase}: publish {artifact_id} to canary, and wait until it serves",
        give_up_after=context.request.plan.load_deadline,
    )
    context.recorded(command.evidence)


async def _warm_canary(context: ReleaseContext, artifact_id: str, *, tolerate_lost: bool) -> None:
    """Publish an artifact to the idle canary and wait until every instance holds it."""
    target = await publish(context, Cohort.CANARY, artifact_id, expected_revision=context.canary_revision)
    context.canary_revision = target.revision
    await context.execute(
        WARM_UP,
        fleet_wait(
            context, Cohort.CANARY, target.revision, CandidatePhase.DRY_RUNNING, tolerate_lost=tolerate_lost
        ),
        summary=f"{context.phase}: warm-up revision {target.revision} on canary",
        give_up_after=context.request.plan.load_deadline,
    )
