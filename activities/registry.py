"""Activities on the registry: admission (which also asks the mesh what it obeys), targets, completion."""

from collections.abc import Sequence
from datetime import timedelta

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities.admission_rules import (
    check_alike,
    check_instances,
    holds_lock,
    left_unfinished,
    require_idle_canary,
    schema_change,
)
from activities.approvals import ApprovalActivities
from activities.evidence import record_evidence
from activities.failures import application_errors
from activities.fleet import live_instances
from activities.incidents import count_stuck_seal
from activities.options import ADMIT, COMPLETE, PUBLISH
from activities.plan_checks import PlanChecks
from weightshift.cluster.base import NO_CLUSTER, Cluster
from weightshift.contracts.approval import ApprovalCheck
from weightshift.contracts.commands import Admittance, CompleteCommand, PublishCommand
from weightshift.contracts.control import Control
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.manifest import ArtifactState
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Admission, Admitted, Completion, Outcome, ReleaseRequest
from weightshift.contracts.target import Target
from weightshift.contracts.traffic import MeshState
from weightshift.errors import (
    MeshDrift,
    ReleaseActive,
    RouteInvalid,
    ScaleRefused,
    StaleFence,
    WeightshiftError,
)
from weightshift.mesh.base import Mesh
from weightshift.registry.base import Registry

_ALERT_AFTER_ATTEMPTS = 5


class RegistryActivities:
    """Everything a release writes to the registry; each repeat returns the first result."""

    def __init__(
        self,
        *,
        registry: Registry,
        mesh: Mesh,
        approvals: ApprovalActivities,
        checks: PlanChecks,
        lost_after: timedelta,
        cluster: Cluster = NO_CLUSTER,
    ) -> None:
        self._registry = registry
        self._cluster = cluster
        self._checks = checks
        self._approvals = approvals
        self._mesh = mesh
        self._lost_after = lost_after

    @activity.defn(name=ADMIT.name)
    async def admit(self, admission: Admission) -> Admittance:
        """Take the release lock, also from a release whose workflow has ended without freeing it.

        Before, raises `NoCanaryCapacity`, `CanaryDiffers`, `FeatureSchemaChanged`, `UnknownApproval`,
        `ApprovalInvalid`, `Conflict` where stable was left with what was never promoted or the canary with
        traffic, and `InvalidPlan` for a plan that cannot be carried out; then `ReleaseActive` while a
        running release holds the lock.
        A repeat of an attempt that took the lock raises none of them: nobody would free it.
        """
        with application_errors():
            service = admission.request.service
            held = holds_lock(admission, await self._registry.releases(service))
            states = await self._registry.instances(service, lost_after=self._lost_after)
            instances = {cohort: live_instances(states, cohort) for cohort in Cohort}
            approvals = await self._approvals.checked(_check_of(admission.request), accepted_before=held)
            traffic = await self._mesh.read(service)
            remarks: tuple[str, ...] = ()
            if not held:
                check_instances(admission.request, instances)
                await self._check_route(admission.request, traffic)
                remarks = await self._check_plan(admission.request, states, traffic)
            admitted, taken_over = await self._lock(admission)
            await self._hold_stable(admission, admitted, traffic.fence)
            releases = await self._registry.releases(service)
            return Admittance(
                epoch=admitted.epoch,
                targets=admitted.targets,
                taken_over=taken_over,
                approvals=approvals,
                remarks=remarks,
                window_by_judge=True,
                joined_waits=True,
                control=admission.request.plan.control,
                traffic=traffic,
                first=not any(release.outcome is Outcome.PROMOTED for release in releases),
                stable=instances[Cohort.STABLE],
                canary=instances[Cohort.CANARY],
            )

    async def _check_plan(
        self, request: ReleaseRequest, states: Sequence[InstanceState], traffic: MeshState
    ) -> tuple[str, ...]:
        """Return what is worth telling of a plan that may start.

        Raises `InvalidPlan`, `CanaryDiffers`, `FeatureSchemaChanged`, `Conflict`.
        """
        targets = await self._registry.targets(request.service)
        candidate = await self._registry.artifact(request.service.model, request.artifact_id)
        change = schema_change(request, candidate, targets.stable)
        records = await self._registry.releases(request.service)
        require_idle_canary(request, traffic.split, targets, records)
        unlike = check_alike(request, states, targets.stable, records)
        told = tuple(remark for remark in (change, unlike) if remark is not None)
        remarks = told + await self._checks.remarks(request, targets, states)
        left = left_unfinished(request, records, targets.stable)
        if left is None:
            return remarks
        healthy = await self._registry.artifact(request.service.model, left.healthy)
        if healthy.state is not ArtifactState.REJECTED:
            raise left.refusal()
        return (*remarks, left.remark())

    async def _check_route(self, request: ReleaseRequest, traffic: MeshState) -> None:
        """See that every stage's split could be written to the mesh.

        Raises `MeshDrift` when somebody has changed it since the last release, and `RouteInvalid`.
        """
        if traffic.drift is not None:
            raise MeshDrift(f"{traffic.drift}; set it back, or use `release rollback --break-glass`")
        await self._check_splits(request.service, request.plan)

    async def _check_splits(self, service: Service, plan: Plan) -> None:
        """See that the mesh can do every stage's split, mirrored ones included. Raises `RouteInvalid`."""
        stages = plan.resolved_stages()
        splits = [plan.stage_split(stage, plan.control) for stage in stages]
        try:
            await self._mesh.check(service, splits)
        except RouteInvalid as problem:
            if not any(split.mirrored for split in splits):
                raise
            await self._mesh.check(service, [plan.stage_split(stage, Control.NONE) for stage in stages])
            raise RouteInvalid(
                f"requests cannot be mirrored: {problem}; or set `control` to holdback or none in the plan"
            ) from problem

    async def _hold_stable(self, admission: Admission, admitted: Admitted, obeyed: Fence | None) -> None:
        """Keep stable's pods until the release has ended: idle, they would be scaled away, and the way back.

        Raises `ScaleRefused`, and `StaleFence` where the mesh obeys nothing of this release, with the lock
        free again.
        """
        if obeyed is not None and obeyed.epoch > admitted.epoch:
            await self._refuse(admission, admitted, _behind(admission.request.service, obeyed, admitted))
        try:
            fence = Fence(epoch=admitted.epoch, sequence=0)
            await self._cluster.hold(admission.request.service, Cohort.STABLE, None, fence)
        except ScaleRefused as problem:
            await self._refuse(admission, admitted, problem)

    async def _refuse(self, admission: Admission, admitted: Admitted, problem: WeightshiftError) -> None:
        """Free the lock of a release that could not go on, and raise why."""
        await self._registry.complete(
            Completion(
                service=admission.request.service,
                release_id=admission.request.release_id,
                outcome=Outcome.REFUSED,
                reason=str(problem),
                fence=Fence(epoch=admitted.epoch, sequence=0),
            )
        )
        raise problem

    async def _lock(self, admission: Admission) -> tuple[Admitted, str | None]:
        try:
            return await self._registry.admit(admission), None
        except ReleaseActive:
            holder = await self._ended_holder(admission.request.service)
            if holder is None:
                raise
        return await self._registry.take_over(holder, admission), holder

    async def _ended_holder(self, service: Service) -> str | None:
        """Return the release that holds the lock if its workflow run is closed, or forgotten by Temporal.

        The run itself is asked for: this may be a late attempt of a run that is closed by now, and must not
        take the lock from its successor.
        """
        releases = await self._registry.releases(service)
        holder = next((release for release in releases if release.outcome is None), None)
        if holder is None:
            return None
        run = activity.client().get_workflow_handle(service.workflow_id, run_id=holder.run_id)
        try:
            description = await run.describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return holder.release_id
        return None if description.status is WorkflowExecutionStatus.RUNNING else holder.release_id

    @activity.defn(name=PUBLISH.name)
    async def publish(self, command: PublishCommand) -> Target:
        """Publish a target, fenced. A rollback's retries are counted for the alert on them."""
        is_seal, attempt = command.publication.expected_revision is None, activity.info().attempt
        if is_seal and attempt > _ALERT_AFTER_ATTEMPTS:
            count_stuck_seal()
            activity.logger.error(
                "%s still cannot be sealed at attempt %d", command.publication.service, attempt
            )
        with application_errors():
            await record_evidence(self._registry, command.evidence)
            return await self._registry.publish(command.publication)

    @activity.defn(name=COMPLETE.name)
    async def complete(self, command: CompleteCommand) -> None:
        """Record the outcome and free the lock."""
        with application_errors():
            await record_evidence(self._registry, command.evidence)
            await self._tidy(command.completion)
            await self._registry.complete(command.completion)

    async def _let_idle_canary_go(self, service: Service, fence: Fence) -> None:
        """Let go what an earlier release held and never let go, since it was terminated."""
        if (await self._mesh.read(service)).split.canary == 0:
            await self._cluster.let_go(service, Cohort.CANARY, fence)

    async def _tidy(self, completion: Completion) -> None:
        """Leave nothing of a release in the route and in the cluster; whoever refuses keeps no lock."""
        service, fence = completion.service, completion.fence
        for tidied in (
            self._mesh.finalise(service, fence),
            self._cluster.let_go(service, Cohort.STABLE, fence),
            self._let_idle_canary_go(service, fence),
        ):
            try:
                await tidied
            except WeightshiftError as error:
                activity.logger.warning("something of %s was left behind: %s", service, error)


def _check_of(request: ReleaseRequest) -> ApprovalCheck:
    return ApprovalCheck(
        service=request.service,
        release_id=request.release_id,
        artifact_id=request.artifact_id,
        approval_ids=request.approvals,
    )


def _behind(service: Service, obeyed: Fence, admitted: Admitted) -> StaleFence:
    return StaleFence(
        f"the mesh obeys epoch {obeyed.epoch} and the registry is at {admitted.epoch}; run `weightshift "
        f"registry recover {service.model} -e {service.environment}` first"
    )
