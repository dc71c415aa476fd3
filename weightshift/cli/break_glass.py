"""`weightshift release rollback --break-glass`: move the traffic past the workflow."""

import asyncio
import shlex

from ulid import ULID

from weightshift.cli.context import Context
from weightshift.cli.options import operator_of
from weightshift.contracts.evidence import BrokenGlass
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.target import Targets
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import WeightshiftError
from weightshift.way_back import released_last

_LONGEST_LOOK_SECONDS = 3.0


async def break_glass(context: Context) -> int:
    """Move all traffic to one side past the workflow, which can then write nothing more and rolls back.

    Asks the registry first what each side holds, and has it record afterwards who moved what and why, for
    three seconds at most each: the move depends on neither.
    """
    side = Cohort(context.arguments.cohort)
    held = await _what_each_side_holds(context, side)
    mesh = context.connections.mesh()
    try:
        before = await mesh.read(context.service)
        after = await mesh.write(context.service, TrafficSplit.all_to(side), _above(before.fence))
        try:
            await mesh.confirm(context.service, after)
        finally:
            is_recorded = await _record(context, before, after)
    finally:
        await mesh.aclose()
    context.output.result(
        after,
        f"traffic stable/canary {after.split}, read back; it was {before.split}",
        held,
        f"next: weightshift release rollback {context.service.model} -e {context.service.environment}"
        f"{_again(context.arguments.reason)} once a worker goes on, so that the release ends and the targets "
        f"are sealed{'' if is_recorded else ', and the audit chain has who and why'}",
    )
    return 0


async def _record(context: Context, before: MeshState, after: MeshState) -> bool:
    """Have the registry record the move in the audit chain, and tell whether it did; it never fails."""
    try:
        broken = BrokenGlass(
            operation_id=str(ULID()),
            before=before.split,
            split=after.split,
            fence=after.fence or _above(before.fence),
            operator=operator_of(context),
            reason=context.arguments.reason or "",
        )
        async with (
            asyncio.timeout(_LONGEST_LOOK_SECONDS),
            context.connections.registry(context.arguments) as registry,
        ):
            await registry.record_broken_glass(context.service, broken)
    except (TimeoutError, WeightshiftError) as error:
        context.output.warning(f"who moved it and why is not in the audit chain yet: {_said(error)}")
        return False
    context.output.line("recorded in the audit chain: who moved it, and why")
    return True


def _said(error: Exception) -> str:
    return str(error) or "the registry took too long"


def _again(reason: str | None) -> str:
    """Repeat a given reason for the next command, which records it: the mesh alone keeps none."""
    return f" --reason {shlex.quote(reason)}" if reason else ""


def _above(accepted: Fence | None) -> Fence:
    """Return a fence above every command of the running release, and above an emergency before this one."""
    if accepted is None:
        return Fence.above_all(0)
    emergency = Fence.above_all(accepted.epoch)
    if accepted < emergency:
        return emergency
    return Fence(epoch=accepted.epoch, sequence=accepted.sequence + 1)


async def _what_each_side_holds(context: Context, side: Cohort) -> str:
    """Say what the registry has published to each side, and warn of a side that holds what is to be left."""
    try:
        async with (
            asyncio.timeout(_LONGEST_LOOK_SECONDS),
            context.connections.registry(context.arguments) as registry,
        ):
            targets = await registry.targets(context.service)
            left = released_last(await registry.releases(context.service))
    except (TimeoutError, WeightshiftError) as error:
        return f"what each side holds is not known, the registry did not say: {_said(error)}"
    if left is not None and _held_by(targets, side) == left:
        context.output.warning(_wrong_side(targets, side, left))
    holds = ", ".join(f"{cohort} holds {_held_by(targets, cohort) or 'nothing'}" for cohort in Cohort)
    return f"by their targets {holds}"


def _wrong_side(targets: Targets, side: Cohort, left: str) -> str:
    other = _held_by(targets, side.other)
    if other in (left, None):
        return f"{side} holds {left}, and no split leads away from it: release another artifact"
    return f"{side} holds {left}, which was released last, and {side.other} {other}: --cohort {side.other}"


def _held_by(targets: Targets, side: Cohort) -> str | None:
    target = targets.of(side)
    return target.artifact_id if target else None
