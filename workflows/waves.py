"""In-place promotion: stable's instances swap a few at a time, under traffic, each wave by its own grant."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.options import GRANT_WAVE, REVOKE_WAVES, WARM_UP
    from weightshift.contracts.commands import FleetWait, InstanceRef, LostInstances, WaveCommand
    from weightshift.contracts.identity import Cohort
    from weightshift.contracts.instance import CandidatePhase
    from weightshift.contracts.target import Target
    from weightshift.contracts.wave import WaveRequest, WaveRevocation
    from workflows.context import Interrupted, ReleaseContext, StageBreached
    from workflows.observe import StageObservation
    from workflows.rollback import Position

_LONGEST_GRANT = timedelta(days=1)


def waves_of(instances: Sequence[InstanceRef], size: int) -> Iterator[tuple[InstanceRef, ...]]:
    """Yield the instances `size` at a time, in order. Pure."""
    for start in range(0, len(instances), size):
        yield tuple(instances[start : start + size])


def granted_share(granted: Sequence[InstanceRef], instances: Sequence[InstanceRef]) -> float:
    """Return the fraction of a pool's capacity that was allowed to swap. Pure."""
    whole = sum(instance.capacity for instance in instances)
    return sum(instance.capacity for instance in granted) / whole if whole else 1.0


async def swap_in_waves(context: ReleaseContext, target: Target, last_stage: StageObservation | None) -> None:
    """Let stable take a target wave by wave, the next only once every instance of this one serves it.

    The last stage, if it was judged, is judged on meanwhile. Raises `StageBreached`, `Interrupted`, and
    `ActivityError` for a wave that failed.
    """
    over = False
    watch = None
    if last_stage is not None and last_stage.is_judged:
        watch = asyncio.create_task(_watch(context, last_stage, lambda: over))
    try:
        await _swap(context, target)
    finally:
        over = True
        if watch is not None:
            await watch
    context.checkpoint()


async def _watch(context: ReleaseContext, stage: StageObservation, until: Callable[[], bool]) -> None:
    """Judge a stage in the background; what it finds interrupts the main loop at its next wait."""
    try:
        await stage.watch(until=until)
    except StageBreached as breached:
        context.breach = str(breached)
    except ActivityError as failed:
        context.breach = f"the judge failed: {failed.cause or failed}"
    except Interrupted:
        pass  # the main loop meets it too


async def _swap(context: ReleaseContext, target: Target) -> None:
    stable = context.admittance.stable
    for number, wave in enumerate(waves_of(stable, context.request.plan.wave), start=1):
        await context.wait(lambda: not context.paused)
        # From here on its instances may have swapped, whatever becomes of the answer.
        context.advance(Position.STABLE_IN_WAVES)
        context.granted = (*context.granted, *wave)
        await _grant(context, target, wave, number)
        progress = await context.execute(
            WARM_UP,
            FleetWait(
                service=context.request.service,
                cohort=Cohort.STABLE,
                revision=target.revision,
                phase=CandidatePhase.DRY_RUNNING,
                instances=wave,
                # No grant lets a newcomer swap: it does after the last wave, and is waited for then.
                lost=LostInstances.COVERED,
                capacity=sum(instance.capacity for instance in stable),
            ),
            summary=f"{context.phase}: wave {number} serves revision {target.revision}",
            give_up_after=context.request.plan.load_deadline,
        )
        context.tell_progress(progress, Cohort.STABLE)


async def _grant(context: ReleaseContext, target: Target, wave: tuple[InstanceRef, ...], number: int) -> None:
    request, fence = context.request, context.next_fence()
    names = tuple(instance.instance_id for instance in wave)
    context.tell(f"wave {number}: {', '.join(names)} may swap to revision {target.revision}")
    command = WaveCommand(
        request=WaveRequest(
            service=request.service,
            revision=target.revision,
            instance_ids=names,
            lifetime=min(request.plan.load_deadline, _LONGEST_GRANT),
            fence=fence,
            operation_id=context.operation_id(fence),
            release_id=request.release_id,
            operator=request.operator,
            reason=request.reason,
        ),
        evidence=context.evidence,
    )
    await context.execute(GRANT_WAVE, command, summary=f"{context.phase}: grant wave {number}")
    context.recorded(command.evidence)


async def revoke_waves(context: ReleaseContext, reason: str) -> None:
    """End every grant, retrying without end: what has not swapped yet stays on the healthy artifact."""
    request, fence = context.request, context.next_fence()
    revocation = WaveRevocation(
        service=request.service,
        fence=fence,
        operation_id=context.operation_id(fence),
        release_id=request.release_id,
        operator=request.operator,
        reason=reason,
    )
    try:
        await context.execute_to_the_end(REVOKE_WAVES, revocation, summary="rollback: revoke every wave")
    except ActivityError as error:
        context.tell(f"waves not revoked, a newer release rules: {error.cause}")
