"""Versions of the worker on a real Temporal, set up and cut over by the commands in the manifests."""

import asyncio
import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter

import worker
from tests.deploy.manifests import Container, containers
from tests.deploy.metric_names import WORKER_SERIES, exposed_names
from tests.workflow.twins import SimulatedFleet, approved_artifact
from weightshift.analysis.series import Series
from weightshift.client import ReleaseClient
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.notification import Notification
from weightshift.contracts.plan import Gate, Metric, Plan, Stage
from weightshift.contracts.release import Outcome, ReleasePhase, ReleaseRequest, RollbackRequest
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    MeshDrift,
    MeshUnreachable,
    NotificationUndelivered,
    StaleFence,
    WeightshiftError,
)
from weightshift.local.ports import HOST, free_ports
from weightshift.local.temporal import SEARCH_ATTRIBUTES, temporal_server
from weightshift.mesh.memory import MemoryMesh
from weightshift.registry.memory import MemoryRegistry
from weightshift.settings import RegistrySettings, TemporalSettings
from worker import Adapters, WorkerSettings, build_workers

NAMESPACE = "weightshift"
PLAN = Plan(
    stages=(Stage(weight=100),),
    window=timedelta(),
    max_window=timedelta(),
    retain=timedelta(hours=1),
    gates=(Gate(metric=Metric.ERROR_RATE, maximum=0.03),),
)
DEADLINE = 60.0


class NoReader:
    """Knows no traffic; stages without windows are not judged anyway."""

    scrape_interval = 1.0
    calibration = 1.0
    mesh_errors = ""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        return ()


class BrokenMesh(MemoryMesh):
    """Gives the canary nothing until it is mended: it does not answer, or knows a newer command."""

    trouble: WeightshiftError | None = None

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        if self.trouble is not None and split.canary:
            raise self.trouble
        return await super().write(service, split, fence, expected=expected)


class DeadChannel:
    """Takes no notification."""

    async def deliver(self, notification: Notification) -> None:
        raise NotificationUndelivered("the receiver does not answer")


def manifest_container(name: str) -> Container:
    (found,) = [one for one in containers("single-node") if one.spec["name"] == name]
    return found


def run_as_in_the_cluster(
    container: Container, target: str, **changed: str
) -> "subprocess.CompletedProcess[str]":
    """Run a container's command here, with its variables, against another address."""
    environment = container.environment() | changed | {"WEIGHTSHIFT_TEMPORAL_ADDRESS": target}
    command = list(container.spec["command"])
    for name, value in environment.items():
        command = [part.replace(f"$({name})", value) for part in command]
    beside = str(Path(sys.executable).parent)
    return subprocess.run(
        command,
        env={**environment, "PATH": f"{beside}:{os.environ['PATH']}", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@dataclass
class ControlPlane:
    """One service on a real Temporal, with workers of any version."""

    target: str
    service: Service
    queue: str
    deployment: str
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    mesh: BrokenMesh = field(default_factory=BrokenMesh)

    @contextlib.asynccontextmanager
    async def workers(self, **settings: Any) -> AsyncIterator[str]:
        """Run a version's two workers; yields where its metrics are."""
        (port,) = free_ports(1)
        chosen = WorkerSettings(
            metrics_address=f"{HOST}:{port}", deployment=self.deployment, graceful_shutdown=0, **settings
        )
        temporal = TemporalSettings(address=self.target, namespace=NAMESPACE)
        client = await worker._connect(temporal, chosen)
        built = build_workers(
            client,
            adapters=Adapters(
                registry=self.registry,
                mesh=self.mesh,
                reader=NoReader(),
                channels={"oncall": DeadChannel()},
            ),
            settings=chosen,
            registry_settings=RegistrySettings(lost_after=60),
            task_queue=self.queue,
        )
        async with contextlib.AsyncExitStack() as stack:
            for one in built:
                await stack.enter_async_context(one)
            yield f"http://{HOST}:{port}/metrics"

    async def make_current(self, build_id: str) -> None:
        """Cut over as the Job does; it is tried again until a worker of the version polls."""
        changed = {"WEIGHTSHIFT_WORKER_BUILD_ID": build_id, "WEIGHTSHIFT_WORKER_DEPLOYMENT": self.deployment}
        cutover = manifest_container("cutover")
        async with asyncio.timeout(DEADLINE):
            while (
                await asyncio.to_thread(run_as_in_the_cluster, cutover, self.target, **changed)
            ).returncode:
                await asyncio.sleep(0.1)

    async def client(self) -> Client:
        return await Client.connect(self.target, namespace=NAMESPACE, data_converter=pydantic_data_converter)

    async def release(self, artifact_id: str, plan: Plan = PLAN) -> ReleaseClient:
        """Start a release; it stays under its parachute for an hour once promoted."""
        await approved_artifact(self.registry, self.service.model, artifact_id)
        releases = ReleaseClient(client=await self.client(), task_queue=self.queue)
        await releases.start(
            ReleaseRequest(
                release_id=f"{self.service.environment}-{artifact_id}",
                service=self.service,
                artifact_id=artifact_id,
                plan=plan,
                operator="ci",
            )
        )
        return releases

    async def workflow(self) -> WorkflowHandle[Any, Any]:
        return (await self.client()).get_workflow_handle(self.service.workflow_id)

    async def build_of_release(self) -> str:
        """Return the build that completed the release's latest workflow task."""
        description = await (await self.workflow()).describe()
        info = description.raw_description.workflow_execution_info.versioning_info
        return info.deployment_version.build_id


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not await condition():
            await asyncio.sleep(0.02)


def is_in(releases: ReleaseClient, service: Service, phase: ReleasePhase) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return (await releases.status(service)).phase is phase

    return check


@pytest.fixture(scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A Temporal server, set up by the Job, twice."""
    async with temporal_server(tmp_path_factory.mktemp("temporal")) as address:
        setup = manifest_container("setup")
        for _ in range(2):
            done = await asyncio.to_thread(run_as_in_the_cluster, setup, address.target)
            assert done.returncode == 0, done.stderr
        yield address.target


@pytest.fixture
async def plane(target: str) -> AsyncIterator[ControlPlane]:
    """A service of its own, with a fleet that follows its targets and v41 released."""
    environment = f"test-{uuid.uuid4().hex[:8]}"
    service = Service(model="ranker", environment=environment)
    plane = ControlPlane(
        target, service, queue=f"queue-{environment}", deployment=f"deployment-{environment}"
    )
    fleet = asyncio.create_task(SimulatedFleet(plane.registry, service).run())
    yield plane
    fleet.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await fleet


async def first_release(plane: ControlPlane) -> None:
    releases = await plane.release("v41")
    assert (await releases.result(plane.service)).outcome is Outcome.PROMOTED


async def test_the_job_sets_temporal_up(target: str) -> None:
    client = await Client.connect(target, namespace=NAMESPACE)
    answer = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=NAMESPACE)
    )
    assert set(SEARCH_ATTRIBUTES) <= set(answer.custom_attributes)


async def test_a_pinned_release_ends_on_the_version_it_began_with(plane: ControlPlane) -> None:
    async with plane.workers(build_id="one"):
        await plane.make_current("one")
        await first_release(plane)
        releases = await plane.release("v42")
        await until(is_in(releases, plane.service, ReleasePhase.PARACHUTE))
        async with plane.workers(build_id="two"):
            await plane.make_current("two")
            await releases.rollback(plane.service, RollbackRequest(reason="smells", operator="ada"))
            assert (await releases.result(plane.service)).outcome is Outcome.ROLLED_BACK
            assert await plane.build_of_release() == "one"
            later = await plane.release("v43")
            await until(is_in(later, plane.service, ReleasePhase.PARACHUTE))
            assert await plane.build_of_release() == "two"


async def test_an_upgrading_release_moves_to_the_new_version(plane: ControlPlane) -> None:
    async with plane.workers(build_id="one", versioning="auto-upgrade"):
        await plane.make_current("one")
        await first_release(plane)
        releases = await plane.release("v42")
        await until(is_in(releases, plane.service, ReleasePhase.PARACHUTE))
    async with plane.workers(build_id="two", versioning="auto-upgrade"):
        await plane.make_current("two")
        await releases.rollback(plane.service, RollbackRequest(reason="smells", operator="ada"))
        assert (await releases.result(plane.service)).outcome is Outcome.ROLLED_BACK
        assert await plane.build_of_release() == "two"


async def test_a_version_that_is_not_current_gets_no_work(plane: ControlPlane) -> None:
    async with plane.workers(build_id="one"):
        releases = await plane.release("v41")
        history = await (await plane.workflow()).fetch_history()
        assert len(history.events) <= 2
        await plane.make_current("one")
        assert (await releases.result(plane.service)).outcome is Outcome.PROMOTED


async def test_the_worker_exposes_what_is_alerted_on(plane: ControlPlane) -> None:
    async with plane.workers() as metrics, httpx.AsyncClient() as http:
        await first_release(plane)
        # A release that no worker can read fails its task for ever.
        client = await plane.client()
        await client.start_workflow(
            "Release", "no request", id=f"unreadable-{plane.queue}", task_queue=plane.queue
        )
        plane.mesh.trouble = MeshUnreachable("the mesh does not answer; wait")
        releases = await plane.release("v42", PLAN.model_copy(update={"notify": ("oncall",)}))
        exposed: set[str] = set()

        async def is_counted(*names: str) -> bool:
            exposed.update(exposed_names((await http.get(metrics)).text))
            return exposed.issuperset(names)

        await until(lambda: is_counted("weightshift_mesh_write_stuck", "weightshift_notification_failures"))
        plane.mesh.follows = plane.registry.available = False
        plane.mesh.trouble = MeshDrift("the weights were edited; read the mesh and decide again")
        await until(lambda: is_counted("weightshift_mesh_drift", "weightshift_mesh_unconfirmed"))
        await until(lambda: is_counted("weightshift_rollback_stuck"))
        plane.mesh.follows = plane.registry.available = True
        await releases.result(plane.service)
        plane.mesh.trouble = StaleFence("a newer command is known; read the mesh and decide again")
        later = await plane.release("v43")
        await until(lambda: is_counted(*WORKER_SERIES))
        plane.mesh.trouble = None
        await later.result(plane.service)
        await client.get_workflow_handle(f"unreadable-{plane.queue}").terminate()
