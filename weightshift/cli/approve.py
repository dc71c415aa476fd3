"""`weightshift release approve`: one person's approval, issued by the registry and given to the release."""

from ulid import ULID

from weightshift.cli.context import Context
from weightshift.cli.options import ENVIRONMENT, REASON, REGISTRY, TEMPORAL, Option
from weightshift.cli.release_view import headline
from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.errors import ApprovalInvalid, Conflict

OPTIONS = (
    Option(("--artifact",), "WEIGHTSHIFT_ARTIFACT", "approve before the start: the artifact to be released"),
    Option(
        ("--release",),
        "WEIGHTSHIFT_RELEASE",
        "with --artifact: the release id that an earlier approval names, default: a new one",
        attribute="release_id",
    ),
    REASON,
    ENVIRONMENT,
    *TEMPORAL,
    *REGISTRY,
)


async def approve(context: Context) -> int:
    """Approve the running release, or with `--artifact` one that is still to be started.

    The registry takes the name from the caller's own token, whatever the command line says.
    """
    if context.arguments.artifact:
        return await _approve_ahead(context)
    client = await context.connections.releases(context.arguments)
    found = await client.status(context.service)
    if found.outcome is not None:
        raise Conflict(
            f"release {found.release_id} has ended as {found.outcome}; there is nothing to approve"
        )
    if found.approval_refusal:
        raise ApprovalInvalid(found.approval_refusal)  # before the registry records one that never counts
    approval = await _issue(context, release_id=found.release_id, artifact_id=found.artifact_id)
    found = await client.approve(context.service, approval.approval_id)
    context.output.result(found, f"approved by {approval.operator}: {headline(found)}")
    return 0


async def _approve_ahead(context: Context) -> int:
    arguments = context.arguments
    approval = await _issue(
        context, release_id=arguments.release_id or str(ULID()), artifact_id=arguments.artifact
    )
    context.output.result(
        approval,
        f"approval {approval.approval_id} by {approval.operator} of release {approval.release_id}, "
        f"until {approval.expires_at:%Y-%m-%d %H:%M %Z}",
        f"next: weightshift release start {arguments.model} {arguments.artifact} -e {arguments.environment} "
        f"--approval {approval.approval_id}",
    )
    return 0


async def _issue(context: Context, *, release_id: str, artifact_id: str) -> Approval:
    request = ApprovalRequest(
        service=context.service,
        release_id=release_id,
        artifact_id=artifact_id,
        operation_id=f"approve:{release_id}:{ULID()}",
        reason=context.arguments.reason,
    )
    async with context.connections.registry(context.arguments) as registry:
        return await registry.approve_release(request)
