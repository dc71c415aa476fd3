"""The real workflow and activities over in-memory twins of our seams."""

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.approvals import ApprovalActivities
from activities.cluster import ClusterActivities
from activities.fleet import FleetActivities
from activities.joined_waits import JoinedWaits
from activities.mesh import MeshActivities
from activities.notify import Channel, NotifyActivities
from activities.options import waits_queue
from activities.plan_checks import PlanChecks
from activities.registry import RegistryActivities
from activities.waves import WaveActivities
from tests.workflow.twins import (
    CountingMesh,
    ScriptedObservations,
    SimulatedFleet,
    ToldTraffic,
    approved_artifact,
)
from weightshift.client import ReleaseClient
from weightshift.cluster.base import NO_CLUSTER, Cluster
from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.contracts.commands import ObserveMode
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.plan import Gate, Metric, Plan, Promotion, Stage
from weightshift.contracts.release import (
    Outcome,
    ReleasePhase,
    ReleaseRequest,
    ReleaseResult,
    ReleaseStatus,
)
from weightshift.registry.memory import MemoryRegistry
from weightshift.way_back import EXPEDITED_PLAN, going_back_key
from workflows.release import ReleaseWorkflow

ATTRIBUTES = ("ReleaseModel", "ReleaseEnvironment", "ReleaseArtifact", "ReleaseStage", "ReleaseVerdict")
LOST_AFTER = timedelta(seconds=60)
FAST_PLAN = Plan(
    stages=tuple(Stage(weight=weight) for weight in (5, 25, 50, 100)),
    window=timedelta(minutes=10),
    max_window=timedelta(hours=1),
    retain=timedelta(minutes=30),
    gates=(Gate(metric=Metric.ERROR_RATE, maximum=0.03),),
)


UNJUDGED_PLAN = FAST_PLAN.model_copy(update={"window": timedelta(), "max_window": timedelta()})
"""Stages without windows, so that nothing but the parachute takes time."""

IN_PLACE = FAST_PLAN.model_copy(
    update={
        "stages": (Stage(weight=5), Stage(weight=40)),
        "promotion": Promotion.IN_PLACE,
        "load_deadline": timedelta(minutes=5),
    }
)
"""Stable keeps traffic, and swaps one instance at a time."""


@contextlib.asynccontextmanager
async def time_skipping_server() -> AsyncIterator[WorkflowEnvironment]:
    """Start a time-skipping server, from the installed package, never downloaded.

    One for each test: an activity that its workflow left behind stops the skipping for good.
    """
    async with await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter,
        test_server_existing_path=str(Path(sys.executable).parent / "temporal-test-server"),
    ) as environment:
        keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        await environment.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=environment.client.namespace,
                search_attributes=dict.fromkeys(ATTRIBUTES, keyword),
            )
        )
        yield environment


class Harness:
    """One service with its registry, mesh, fleet and worker."""

    cached_workflows = 100
    cluster: Cluster = NO_CLUSTER

    def __init__(self, environment: WorkflowEnvironment) -> None:
        self.environment = environment
        self.service = Service(model="ranker", environment=f"test-{uuid.uuid4().hex[:8]}")
        self.queue = f"queue-{uuid.uuid4().hex}"
        self.registry = MemoryRegistry()
        self.mesh = CountingMesh()
        self.fleet = SimulatedFleet(self.registry, self.service)
        self.traffic = ToldTraffic()
        self.observations = ScriptedObservations(self.registry)
        self.client = ReleaseClient(client=environment.client, task_queue=self.queue)
        self.channels: dict[str, Channel] = {}
        self._count = 0

    async def artifact(self, artifact_id: str) -> None:
        """Register and approve an artifact."""
        await approved_artifact(self.registry, self.service.model, artifact_id)

    def request(self, artifact_id: str, plan: Plan = FAST_PLAN) -> ReleaseRequest:
        """Build a request with a fresh release id."""
        self._count += 1
        return ReleaseRequest(
            release_id=f"{self.service.environment}-{self._count}",
            service=self.service,
            artifact_id=artifact_id,
            plan=plan,
            operator="ci",
        )

    async def start(self, artifact_id: str, plan: Plan = FAST_PLAN) -> str:
        """Start a release, and return its run id."""
        return await self.client.start(self.request(artifact_id, plan))

    async def go_back(self, artifact_id: str, plan: Plan = EXPEDITED_PLAN) -> None:
        """Start a release the way `release rollback` does once the release before has ended."""
        request = self.request(artifact_id, plan)
        key = going_back_key(request.release_id)
        await self.client.start(request.model_copy(update={"request_key": key}))

    async def result(self) -> ReleaseResult:
        """Skip time until the release has ended."""
        handle = self.environment.client.get_workflow_handle(
            self.service.workflow_id, result_type=ReleaseResult
        )
        async with self.environment.time_skipping_unlocked():  # type: ignore[attr-defined]
            async with asyncio.timeout(60):
                result: ReleaseResult = await handle.result()
                return result

    async def until_judging(self, weight: int) -> None:
        """Skip time until a stage of this weight is being judged."""
        reached = self.observations.reached
        async with self.environment.time_skipping_unlocked(), asyncio.timeout(20), reached:  # type: ignore[attr-defined]
            await reached.wait_for(lambda: any(one.stage.weight == weight for one in self.observations.asked))

    async def until_the_parachute_is_up(self) -> None:
        """Wait until the promoted release's previous artifact is warm on the canary; skips no time."""

        async def is_up() -> bool:
            status = await self.client.status(self.service)
            return status.phase is ReleasePhase.PARACHUTE and status.way_back == "instant"

        await self.until_in_real_time(is_up)

    async def release(self, artifact_id: str, plan: Plan = FAST_PLAN) -> ReleaseResult:
        """Start a release and skip to its end."""
        await self.start(artifact_id, plan)
        return await self.result()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Skip time until a condition on the twins or the release holds."""
        async with self.environment.time_skipping_unlocked():  # type: ignore[attr-defined]
            await self.until_in_real_time(condition)

    async def until_in_real_time(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition without skipping what a timer has yet to run."""
        async with asyncio.timeout(20):
            while not await condition():
                await asyncio.sleep(0.01)

    async def is_in(self, phase: ReleasePhase) -> bool:
        """Whether the release says it is in this phase."""
        return (await self.client.status(self.service)).phase is phase

    def watches(self, weight: int) -> Callable[[], Awaitable[bool]]:
        """Return the condition that a stage of this weight is judged on after its end, or in a pause."""

        async def asked() -> bool:
            return any(
                one.stage.weight == weight and one.mode is ObserveMode.WATCH
                for one in self.observations.asked
            )

        return asked

    async def serves(self, cohort: Cohort, artifact_id: str) -> bool:
        """Whether a cohort's target is this artifact."""
        target = (await self.registry.targets(self.service)).of(cohort)
        return target is not None and target.artifact_id == artifact_id

    def splits(self) -> list[str]:
        """Every accepted split, stable/canary, oldest first."""
        return [str(split) for _, split, _ in self.mesh.writes]

    def admission(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> RegistryActivities:
        """Build the activities that write to the registry; approvals expire by `clock`."""
        return RegistryActivities(
            registry=self.registry,
            mesh=self.mesh,
            approvals=ApprovalActivities(registry=self.registry, clock=clock),
            checks=PlanChecks(traffic=self.traffic, highest_load=2.0, channels=self.channels),
            cluster=self.cluster,
            lost_after=LOST_AFTER,
        )

    async def give(self, operator: str, **changes: Any) -> Approval:
        """Have the registry issue one person's approval of the newest release."""
        status = await self.client.status(self.service)
        request = ApprovalRequest(
            service=self.service,
            release_id=status.release_id,
            artifact_id=status.artifact_id,
            operation_id=uuid.uuid4().hex,
        )
        return await self.registry.approve_release(request.model_copy(update=changes), operator=operator)

    async def approve(self, operator: str) -> ReleaseStatus:
        """Approve the newest release as one person."""
        approval = await self.give(operator)
        return await self.client.approve(self.service, approval.approval_id)

    def workers(self, client: Client) -> list[Worker]:
        """Build the two workers of the control plane with a scripted judgement."""
        admission = self.admission()
        poll = timedelta(milliseconds=5)
        fleet = FleetActivities(
            registry=self.registry, lost_after=LOST_AFTER, poll=poll, cluster=self.cluster
        )
        pods = ClusterActivities(
            registry=self.registry, lost_after=LOST_AFTER, poll=poll, cluster=self.cluster
        )
        joined = JoinedWaits(fleet=fleet, judge=self.observations, publisher=admission, mesh=self.mesh)
        traffic = MeshActivities(mesh=self.mesh)
        waves = WaveActivities(registry=self.registry)
        return [
            Worker(
                client,
                task_queue=self.queue,
                workflows=[ReleaseWorkflow],
                max_cached_workflows=self.cached_workflows,
                activities=[
                    *(admission.admit, admission.publish, admission.complete),
                    *(waves.grant, waves.revoke),
                    *(ApprovalActivities(registry=self.registry).check, fleet.check_capacity),
                    fleet.warm_up,
                    *(traffic.write, traffic.read),
                ],
            ),
            Worker(
                client,
                task_queue=waits_queue(self.queue),
                # A cancellation reaches an activity with a heartbeat, and time is not skipped before.
                max_heartbeat_throttle_interval=timedelta(milliseconds=50),
                activities=[
                    *(fleet.download, fleet.verify, fleet.warm_up),
                    *(joined.swap, joined.adopt, self.observations.observe),
                    *(pods.scale_up, pods.scale_down),
                    NotifyActivities(channels=self.channels).send,
                ],
            ),
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run workers and fleet, with v41 released and v42 and v43 ready."""
        async with self.waiting():
            first = await self.release("v41")
            assert first.outcome is Outcome.PROMOTED
            yield self

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[Self]:
        """Run workers and fleet, with v41, v42 and v43 ready and nothing released yet."""
        async with contextlib.AsyncExitStack() as exits:
            for worker in self.workers(self.environment.client):
                await exits.enter_async_context(worker)
            fleet = asyncio.create_task(self.fleet.run())
            exits.callback(fleet.cancel)
            for artifact_id in ("v41", "v42", "v43"):
                await self.artifact(artifact_id)
            await self.fleet.follow()
            yield self
