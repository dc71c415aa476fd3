"""Whether all of the canary is there, before it gets traffic."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.options import CHECK_CAPACITY
    from weightshift.contracts.commands import Capacity, CapacityCheck
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.plan import ResolvedStage
    from workflows.context import ReleaseContext, StageBreached

_READY_WITHIN = timedelta(seconds=15)
_LOOKED_AT_EVERY = timedelta(seconds=3)


def whole_canary(context: ReleaseContext) -> CapacityCheck:
    """Ask whether all of the canary is there, on the revision that it is to serve."""
    return CapacityCheck(
        service=context.request.service,
        cohort=Cohort.CANARY,
        revision=context.canary_revision,
        instances=context.admittance.canary,
    )


async def require_capacity(context: ReleaseContext, stage: ResolvedStage) -> None:
    """Return when all of the canary is ready for a stage. Raises `StageBreached`, `Interrupted`.

    One that serves and is not ready is looked at again for some seconds: a single readiness probe that
    failed must not end a release. One that is lost, or was restarted, ends it at once.
    """
    capacity = await _look(context, stage)
    until = workflow.now() + _READY_WITHIN
    if capacity.missing and capacity.all_serve:
        context.tell(f"canary not ready, looked at again: {'; '.join(capacity.missing)}")
    while capacity.missing and capacity.all_serve and workflow.now() < until:
        await context.wait(
            lambda: False, timeout=_LOOKED_AT_EVERY, summary=f"until the canary is ready for {stage.weight} %"
        )
        capacity = await _look(context, stage)
    if capacity.pool is not None:
        context.tell(f"canary: {capacity.pool}", pool=capacity.pool.model_dump(mode="json"))
    if capacity.missing:
        raise StageBreached("canary not ready: " + "; ".join(capacity.missing))


async def _look(context: ReleaseContext, stage: ResolvedStage) -> Capacity:
    return await context.look_up(
        CHECK_CAPACITY, whole_canary(context), summary=f"capacity for {stage.weight} %"
    )
