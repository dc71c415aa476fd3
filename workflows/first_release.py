"""The first release of a service: nothing serves yet, so there is nothing to compare with or go back to."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.options import WARM_UP
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.instance import CandidatePhase
    from weightshift.contracts.release import Outcome, ReleasePhase
    from weightshift.contracts.traffic import TrafficSplit
    from workflows.context import ReleaseContext
    from workflows.forward import fleet_wait, publish, shift
    from workflows.human_gate import pass_gate
    from workflows.rollback import Position


async def run_first_release(context: ReleaseContext) -> None:
    """Publish to both cohorts, see both warm, and give stable the traffic."""
    context.position = Position.FIRST_RELEASE
    await pass_gate(context, 100, None)
    artifact = context.request.artifact_id
    context.enter(ReleasePhase.PUBLISHING, f"first release: publishing {artifact} to both cohorts")
    revisions = {}
    for cohort in Cohort:
        current = context.admittance.targets.of(cohort)
        target = await publish(
            context, cohort, artifact, expected_revision=current.revision if current else 0
        )
        revisions[cohort] = target.revision
    context.enter(ReleasePhase.WARMING_UP, "warming up every instance")
    for cohort, revision in revisions.items():
        progress = await context.execute(
            WARM_UP,
            fleet_wait(context, cohort, revision, CandidatePhase.DRY_RUNNING),
            summary=f"warm-up revision {revision} on {cohort}",
            give_up_after=context.request.plan.load_deadline,
        )
        context.tell_progress(progress, cohort)
    await shift(context, TrafficSplit.all_to(Cohort.STABLE))
    context.settle(Outcome.PROMOTED, f"{artifact} serves; first release, so there is no way back")
