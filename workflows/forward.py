"""The way forward: admit, prepare the canary, shift traffic; and the end of it all."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.options import (
        ADMIT,
        COMPLETE,
        CUT,
        DOWNLOAD,
        PUBLISH,
        SHIFT,
        VERIFY,
        WARM_UP,
    )
    from weightshift.contracts.commands import (
        Admittance,
        CompleteCommand,
        FleetProgress,
        FleetWait,
        InstanceRef,
        LostInstances,
        MeshWrite,
        PublishCommand,
    )
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.instance import CandidatePhase
    from weightshift.contracts.notification import NotificationEvent
    from weightshift.contracts.plan import ResolvedStage
    from weightshift.contracts.release import Admission, Completion, Outcome, ReleasePhase
    from weightshift.contracts.target import Publication, Target
    from weightshift.contracts.traffic import TrafficSplit
    from weightshift.way_back import is_going_back
    from workflows.capacity import require_capacity
    from workflows.context import ReleaseContext
    from workflows.human_gate import open_gates, pass_gate
    from workflows.notices import notify
    from workflows.observe import StageObservation, observe_stage
    from workflows.pods import scale_down
    from workflows.rollback import Position

_CANARY_LEFT_ALONE = "going back from a canary that carries traffic leaves it alone when it fails"


async def admit(context: ReleaseContext) -> None:
    """Take the release lock; from here on there is something to give back."""
    request = context.request
    context.interruptible = False
    context.admitted = await context.execute_to_the_end(
        ADMIT,
        Admission(request=request, run_id=workflow.info().run_id),
        summary=f"lock {request.service}",
    )
    context.interruptible = True
    context.traffic = context.admitted.traffic
    _tell_admission(context, context.admitted)
    notify(context, NotificationEvent.START, request.reason or "no reason was given")
    open_gates(context)
    if _returns_from_canary(context) and workflow.patched(_CANARY_LEFT_ALONE):
        _begin_on_canary(context)
    elif context.admitted.taken_over is not None:
        await _end_split_of(context, context.admitted.taken_over)
    context.checkpoint()


def _returns_from_canary(context: ReleaseContext) -> bool:
    """Whether `--break-glass` left traffic on the canary, and stable alone is not what is gone back to.

    What a terminated release left there may be its candidate, so then the canary alone has to hold it.
    """
    admittance, request = context.admittance, context.request
    carries = admittance.traffic is not None and admittance.traffic.split.canary > 0
    holds = {cohort for cohort in Cohort if _holds(context, cohort)}
    is_where = holds == {Cohort.CANARY} if admittance.taken_over else holds != {Cohort.STABLE}
    return carries and is_going_back(request.request_key) and is_where


def _holds(context: ReleaseContext, cohort: Cohort) -> bool:
    target = context.admittance.targets.of(cohort)
    return target is not None and target.artifact_id == context.request.artifact_id


def _begin_on_canary(context: ReleaseContext) -> None:
    """Keep to the canary whatever happens: stable holds what people have left."""
    if context.admittance.traffic is not None:
        context.read_back(context.admittance.traffic)
    context.position = Position.RETURNING_FROM_CANARY
    context.tell(f"the canary keeps its traffic, {context.split}, until stable serves what is gone back to")


def _tell_admission(context: ReleaseContext, admitted: Admittance) -> None:
    """Keep as evidence what the release will do, with every default filled in."""
    plan = context.request.plan
    stages = plan.resolved_stages()
    context.tell(
        f"admitted with epoch {admitted.epoch}, stages {', '.join(f'{stage.weight} %' for stage in stages)}",
        plan=plan.model_dump(mode="json"),
        stages=[stage.model_dump(mode="json") for stage in stages],
    )
    for remark in admitted.remarks:
        context.tell(remark)


async def _end_split_of(context: ReleaseContext, abandoned: str) -> None:
    """Bring the traffic of a release that was terminated in its middle to stable before anything else."""
    split = TrafficSplit.all_to(Cohort.STABLE)
    state = await context.execute_to_the_end(
        CUT,
        MeshWrite(service=context.request.service, split=split, fence=context.next_fence(), must_happen=True),
        summary=f"end the split of release {abandoned}: stable/canary {split}",
    )
    context.read_back(state)
    context.tell(f"took over from release {abandoned}, which was terminated; traffic {state.split}")


async def publish(
    context: ReleaseContext,
    cohort: Cohort,
    artifact_id: str,
    *,
    expected_revision: int,
    requires_grant: bool = False,
) -> Target:
    """Publish an artifact to a cohort, if nobody else did since its revision was read."""
    command = publication(
        context,
        cohort,
        artifact_id,
        expected_revision=expected_revision,
        requires_grant=requires_grant,
    )
    summary = f"{context.phase}: publish {artifact_id} to {cohort}"
    target = await context.execute(PUBLISH, command, summary=summary)
    context.recorded(command.evidence)
    return target


def publication(
    context: ReleaseContext,
    cohort: Cohort,
    artifact_id: str,
    *,
    expected_revision: int,
    requires_grant: bool = False,
) -> PublishCommand:
    """Build the next command, with the evidence gathered before it."""
    fence = context.next_fence()
    document = Publication(
        service=context.request.service,
        cohort=cohort,
        artifact_id=artifact_id,
        expected_revision=expected_revision,
        requires_grant=requires_grant,
        fence=fence,
        operation_id=context.operation_id(fence),
        release_id=context.request.release_id,
        operator=context.request.operator,
        reason=context.request.reason,
    )
    return PublishCommand(publication=document, evidence=context.evidence)


async def prepare_canary(context: ReleaseContext) -> None:
    """Publish to the canary, and see it downloaded, verified and dry-run on every instance."""
    canary = context.admittance.targets.canary
    context.advance(Position.CANARY_PUBLISHED)
    context.enter(ReleasePhase.PUBLISHING, f"publishing {context.request.artifact_id} to canary")
    target = await publish(
        context,
        Cohort.CANARY,
        context.request.artifact_id,
        expected_revision=canary.revision if canary else 0,
    )
    context.canary_revision = target.revision
    for phase, call, last in (
        (ReleasePhase.DOWNLOADING, DOWNLOAD, CandidatePhase.DOWNLOADING),
        (ReleasePhase.VERIFYING, VERIFY, CandidatePhase.VERIFYING),
        (ReleasePhase.WARMING_UP, WARM_UP, CandidatePhase.DRY_RUNNING),
    ):
        context.enter(phase, f"{phase} on {len(context.admittance.canary)} canary instances")
        progress = await context.execute(
            call,
            fleet_wait(context, Cohort.CANARY, target.revision, last),
            summary=f"{phase} revision {target.revision} on canary",
            give_up_after=context.request.plan.load_deadline,
        )
        context.tell_progress(progress, Cohort.CANARY)
    context.reload_seconds = _slowest_load(progress)


async def shift_traffic(context: ReleaseContext) -> StageObservation | None:
    """Raise the canary's share stage by stage, each only after the one before was judged healthy.

    Returns the last stage's observation, which may go on.
    """
    before: StageObservation | None = None
    for stage in context.request.plan.resolved_stages():
        await pass_gate(context, stage.weight, before)
        await require_capacity(context, stage)
        context.advance(Position.CANARY_SERVING)
        context.promote_requested = False
        context.had_traffic = True
        context.stage_weight = stage.weight
        split = context.request.plan.stage_split(stage, context.admittance.control)
        context.enter(ReleasePhase.OBSERVING, f"shifting {stage.weight} % to canary{_compared(stage, split)}")
        await _raise_share(context, split)
        before = await observe_stage(context, stage)
    return before


async def _raise_share(context: ReleaseContext, split: TrafficSplit) -> None:
    """Shift to a stage's split, unless that takes traffic from the canary to a stable that is being left."""
    carried = context.split
    is_returning = context.position is Position.RETURNING_FROM_CANARY
    if is_returning and carried is not None and split.canary < carried.canary:
        context.tell(f"traffic stays at {carried} until stable has swapped")
        return
    await shift(context, split)
    notify(context, NotificationEvent.STAGE, f"{split.canary} % of the traffic is on canary")


def _compared(stage: ResolvedStage, split: TrafficSplit) -> str:
    """Say what the canary is compared with where it would carry everything."""
    if stage.weight < 100 or not stage.max_window:
        return ""
    if split.mirrored:
        return f", compared with {split.mirrored} % mirrored to stable"
    if split.stable:
        return f", but for {split.stable} % that stay on stable to compare with"
    return ", compared with nothing"


async def shift(context: ReleaseContext, split: TrafficSplit) -> None:
    """Write a split and keep what the mesh reads back. Fails where somebody else has changed it."""
    command = MeshWrite(
        service=context.request.service,
        split=split,
        fence=context.next_fence(),
        expected=context.traffic,
    )
    state = await context.execute(SHIFT, command, summary=f"{context.phase}: stable/canary {split}")
    context.read_back(state)


async def finish(context: ReleaseContext) -> None:
    """Record the outcome and free the lock, last of all: another release may start after it."""
    context.interruptible = False
    await scale_down(context)
    outcome = context.outcome or Outcome.REFUSED
    context.tell(f"ending: {outcome}, traffic {context.split or 'untouched'}")
    completion = Completion(
        service=context.request.service,
        release_id=context.request.release_id,
        outcome=outcome,
        reason=context.reason,
        fence=context.next_fence(),
    )
    await context.execute_to_the_end(
        COMPLETE,
        CompleteCommand(completion=completion, evidence=context.evidence),
        summary=f"free {context.request.service}: {outcome}",
    )
    context.enter(ReleasePhase.DONE, f"{outcome}: {context.reason}")
    notify(context, NotificationEvent.END, context.reason)


def fleet_wait(
    context: ReleaseContext,
    cohort: Cohort,
    revision: int,
    phase: CandidatePhase,
    *,
    tolerate_lost: bool = False,
) -> FleetWait:
    """Build the wait for every instance of a cohort that was there at admission."""
    may_be_replaced = cohort is Cohort.STABLE and not tolerate_lost
    return FleetWait(
        service=context.request.service,
        cohort=cohort,
        revision=revision,
        phase=phase,
        instances=instances_of(context, cohort),
        tolerate_lost=tolerate_lost,
        lost=LostInstances.REPLACED if may_be_replaced else LostInstances.AWAITED,
    )


def instances_of(context: ReleaseContext, cohort: Cohort) -> tuple[InstanceRef, ...]:
    """Return the instances of a cohort that were there at admission."""
    return context.admittance.stable if cohort is Cohort.STABLE else context.admittance.canary


def _slowest_load(progress: FleetProgress) -> float | None:
    seconds = [instance.busy_seconds for instance in progress.instances]
    return max(seconds, default=None)
