"""The canary's pods, where the plan asks for some: more before the release, as many as before after it."""

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.options import SCALE_DOWN, SCALE_UP
    from weightshift.contracts.commands import ScaleDown, ScaleUp
    from weightshift.way_back import is_going_back
    from workflows.context import ReleaseContext


async def scale_up(context: ReleaseContext) -> None:
    """Wait until the canary has the pods that the plan asks for; their instances are the release's then."""
    replicas = context.request.plan.canary_replicas
    if replicas is None:
        return
    context.kept_pods = tuple(instance.instance_id for instance in context.admittance.canary)
    context.pods_held = True
    command = ScaleUp(
        service=context.request.service,
        replicas=replicas,
        fence=context.next_fence(),
        like_stable=_has_to_be_tried(context),
    )
    scaled = await context.execute(
        SCALE_UP,
        command,
        summary=f"{replicas} canary pods",
        give_up_after=context.request.plan.load_deadline,
    )
    context.admitted = context.admittance.model_copy(update={"canary": scaled.instances})
    context.tell(f"canary scaled: {scaled.pool}")


def _has_to_be_tried(context: ReleaseContext) -> bool:
    """Whether something serves that the artifact has not served on before; see `check_alike`."""
    return context.admittance.targets.stable is not None and not is_going_back(context.request.request_key)


async def scale_down(context: ReleaseContext) -> None:
    """Let the pods go once no traffic is on them; a cluster that refuses keeps no release from its end."""
    if not context.pods_held:
        return
    if context.split is not None and context.split.canary:
        context.tell(f"canary not scaled down: it has traffic, {context.split}")
        return
    command = ScaleDown(service=context.request.service, keep=context.kept_pods, fence=context.next_fence())
    try:
        await context.execute_to_the_end(SCALE_DOWN, command, summary="let the canary's pods go")
    except ActivityError as error:
        context.tell(f"canary not scaled down: {error.cause}")
