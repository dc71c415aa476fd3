"""`weightshift release rollback`: take traffic back, whatever state the release is in."""

from typing import TYPE_CHECKING

from ulid import ULID

from weightshift.cli.break_glass import break_glass
from weightshift.cli.context import Context
from weightshift.cli.newest import newest_status
from weightshift.cli.options import ENVIRONMENT, OPERATOR, REASON, REGISTRY, TEMPORAL, Option, operator_of
from weightshift.cli.progress import ReleaseProgress
from weightshift.cli.release_view import EXIT_CODES, headline
from weightshift.contracts.identity import Cohort
from weightshift.contracts.release import Outcome, ReleaseRequest, RollbackRequest
from weightshift.errors import Conflict, UnknownService
from weightshift.way_back import (
    abandoned_release,
    artifact_to_go_back_to,
    expedited_plan,
    failed_return,
    going_back_key,
    is_settled,
    never_promoted,
    require_serving,
)

if TYPE_CHECKING:
    from weightshift.client import ReleaseClient

OPTIONS = (
    Option(("--to",), "WEIGHTSHIFT_ROLLBACK_TO", "artifact to go back to, default: the one before"),
    Option(
        ("--from",),
        "WEIGHTSHIFT_ROLLBACK_FROM",
        "act only if this artifact serves or is being released",
        attribute="only_from",
    ),
    Option(
        ("--break-glass",),
        "WEIGHTSHIFT_BREAK_GLASS",
        "write the mesh directly, for when Temporal is away: all traffic to one side",
        default=False,
        switch=True,
    ),
    Option(
        ("--cohort",),
        "WEIGHTSHIFT_BREAK_GLASS_COHORT",
        "with --break-glass: the side that gets all traffic, stable or canary",
        default=Cohort.STABLE.value,
        choices=tuple(Cohort),
    ),
    OPERATOR,
    REASON,
    ENVIRONMENT,
    *TEMPORAL,
    *REGISTRY,
)


async def rollback(context: Context) -> int:
    """Roll the active release back, or release the artifact that was promoted before, or that `--to` names.

    Answers once the mesh has shown where traffic is.
    """
    if context.arguments.break_glass:
        return await break_glass(context)
    if context.arguments.cohort != Cohort.STABLE:
        context.output.warning(
            "cohort is for --break-glass alone; a release knows where the healthy artifact is"
        )
    client = await context.connections.releases(context.arguments)
    released = await client.active_artifact(context.service)
    if released is None:
        return await _return_to_earlier(context, client)
    require_serving(context.arguments.only_from, released)
    request = RollbackRequest(operator=operator_of(context), reason=_reason(context))
    found = await client.rollback(context.service, request)
    if found.outcome is Outcome.PROMOTED:
        await client.result(context.service)  # until then it holds the lock, and its outcome is not known
        return await _return_to_earlier(context, client)
    if context.arguments.to is not None and context.arguments.to != await _on_stable(context):
        await client.result(context.service)
        return await _release_at_once(context, client, context.arguments.to)
    context.output.result(found, f"traffic stable/canary {found.split}: {headline(found)}")
    return 0


async def _on_stable(context: Context) -> str | None:
    async with context.connections.registry(context.arguments) as registry:
        stable = (await registry.targets(context.service)).stable
    return stable.artifact_id if stable else None


async def _return_to_earlier(context: Context, client: "ReleaseClient") -> int:
    arguments = context.arguments
    async with context.connections.registry(arguments) as registry:
        stable = (await registry.targets(context.service)).stable
        records = await registry.releases(context.service)
    if stable is None:
        raise UnknownService(f"nothing serves {context.service}, so there is nothing to take back")
    abandoned = abandoned_release(records)
    require_serving(
        arguments.only_from, stable.artifact_id, None if abandoned is None else abandoned.artifact_id
    )
    if is_settled(records, stable.artifact_id) and arguments.to is None and arguments.only_from is None:
        # A gate or a colleague was faster: going back twice would leave the healthy artifact.
        found = await newest_status(client, context.service)
        text = f"nothing to do, {stable.artifact_id} serves; newest release: {headline(found)}"
        context.output.result(found, text)
        return 0
    artifact_id = arguments.to or artifact_to_go_back_to(records, stable.artifact_id)
    is_unfinished = abandoned is not None or never_promoted(records, stable.artifact_id)
    # It may be on stable's target alone: a return from a canary that carries traffic leaves it there.
    if artifact_id == stable.artifact_id and not is_unfinished and not failed_return(records, artifact_id):
        raise Conflict(f"{artifact_id} serves already; nothing was changed")
    return await _release_at_once(context, client, artifact_id)


async def _release_at_once(context: Context, client: "ReleaseClient", artifact_id: str) -> int:
    """Release an artifact without windows, and answer once the mesh has shown where traffic is."""
    async with context.connections.registry(context.arguments) as registry:
        states = await registry.instances(context.service)
    release_id = str(ULID())
    request = ReleaseRequest(
        release_id=release_id,
        service=context.service,
        artifact_id=artifact_id,
        plan=expedited_plan(states),
        operator=operator_of(context),
        reason=_reason(context),
        request_key=going_back_key(release_id),
    )
    run_id = await client.start(request)
    with ReleaseProgress(context.output) as progress:
        found = await client.wait(context.service, on_status=progress.show, run_id=run_id)
    context.output.result(found, f"traffic stable/canary {found.split}: {headline(found)}")
    return EXIT_CODES[found.outcome] if found.outcome is not None else 1


def _reason(context: Context) -> str:
    return context.arguments.reason or "rollback requested on the command line"
