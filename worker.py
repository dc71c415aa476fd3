"""The control plane's composition root: settings, adapters, activities, worker."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import httpx
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import Worker, WorkerDeploymentConfig

from activities.approvals import ApprovalActivities
from activities.cluster import ClusterActivities
from activities.fleet import FleetActivities
from activities.joined_waits import JoinedWaits
from activities.mesh import MeshActivities
from activities.metrics import MetricsActivities
from activities.notify import Channel, NotifyActivities
from activities.options import CONTROL_QUEUE, waits_queue
from activities.plan_checks import PlanChecks
from activities.prometheus import PrometheusReader
from activities.registry import RegistryActivities
from activities.stage_metrics import MetricsReader
from activities.traffic import MeasuredTraffic
from activities.waves import WaveActivities
from activities.webhook import channel_settings, open_channels
from weightshift.artifacts.configured_keys import release_authoriser
from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.cluster.base import NO_CLUSTER, Cluster
from weightshift.cluster.open_cluster import open_cluster
from weightshift.errors import WeightshiftError
from weightshift.mesh.base import Mesh
from weightshift.mesh.open_mesh import open_mesh
from weightshift.processor_turns import take_turns_of
from weightshift.registry.base import Registry
from weightshift.registry.store import PostgresRegistry
from weightshift.settings import (
    AuthorisationSettings,
    ClusterSettings,
    MeshSettings,
    MetricsSettings,
    NotifySettings,
    RegistrySettings,
    TemporalSettings,
)
from weightshift.temporal_connection import connect
from workflows.release import ReleaseWorkflow

_COMMAND_SLOTS = 1_000
# Every release that is judged holds a slot for hours.
_WAIT_SLOTS = 4_000
# Temporal's client would keep beats back until a fifth of the time-out is left.
_BEATS_APART = timedelta(seconds=5)
# A release that is not in the cache is replayed first, also before it turns back.
_CACHED_RELEASES = 4_000
# Judges compute in threads, and every step of a rollback changes threads several times: with Python's five
# milliseconds per change it would wait for all of them each time.
_THREAD_SWITCH_SECONDS = 0.0005
# A rollback passes through a dozen threads and processes, and each would wait for the end of somebody's turn.
_PROCESSOR_TURN_SECONDS = 0.0005
# An answer of Prometheus is tens of thousands of objects that go again at once. Python's own thresholds take
# each for a reason to look through everything else: a third of the time, in pauses that rollbacks sit out.
_GARBAGE_THRESHOLDS = (20_000, 20, 10)


class WorkerSettings(BaseSettings):
    """Settings of the worker process. Durations are seconds.

    With a `build_id` the worker is one version of the Temporal deployment `deployment`, and gets work
    once that version is made current. `versioning` says what becomes of a release when a later version
    is: `pinned` ends where it began, `auto-upgrade` moves over.

    A plan is refused when a stage would give canary instances more than `highest_load` times the requests
    that stable's instances of the same capacity carry now, and keep them busy all the time.
    """

    model_config = SettingsConfigDict(env_prefix="WEIGHTSHIFT_WORKER_")

    metrics_address: str = "127.0.0.1:9464"
    graceful_shutdown: float = Field(default=10.0, ge=0)
    fleet_poll: float = Field(default=0.2, gt=0)
    highest_load: float = Field(default=2.0, ge=1)
    deployment: str = Field(default="weightshift", min_length=1)
    build_id: str = ""
    versioning: Literal["pinned", "auto-upgrade"] = "pinned"

    @property
    def deployment_config(self) -> WorkerDeploymentConfig | None:
        """Which version of the worker this is, for Temporal; None when it has no versions."""
        if not self.build_id:
            return None
        behaviours = {"pinned": VersioningBehavior.PINNED, "auto-upgrade": VersioningBehavior.AUTO_UPGRADE}
        return WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment_name=self.deployment, build_id=self.build_id),
            use_worker_versioning=True,
            default_versioning_behavior=behaviours[self.versioning],
        )


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What the control plane reaches outside of itself; `channels` are the receivers of notifications."""

    registry: Registry
    mesh: Mesh
    reader: MetricsReader
    cluster: Cluster = NO_CLUSTER
    channels: Mapping[str, Channel] = field(default_factory=dict)


def build_workers(
    client: Client,
    *,
    adapters: Adapters,
    settings: WorkerSettings,
    registry_settings: RegistrySettings,
    task_queue: str = CONTROL_QUEUE,
) -> tuple[Worker, Worker]:
    """Return the worker of releases and their short commands, and the one of waits with slots of its own."""
    grace = timedelta(seconds=settings.graceful_shutdown)
    commands, waits = _activities(adapters, settings, registry_settings)
    releases = Worker(
        client,
        task_queue=task_queue,
        workflows=[ReleaseWorkflow],
        max_cached_workflows=_CACHED_RELEASES,
        activities=commands,
        max_concurrent_activities=_COMMAND_SLOTS,
        max_heartbeat_throttle_interval=_BEATS_APART,
        graceful_shutdown_timeout=grace,
        deployment_config=settings.deployment_config,
    )
    waiting = Worker(
        client,
        task_queue=waits_queue(task_queue),
        activities=waits,
        max_concurrent_activities=_WAIT_SLOTS,
        max_heartbeat_throttle_interval=_BEATS_APART,
        graceful_shutdown_timeout=grace,
        deployment_config=settings.deployment_config,
    )
    return releases, waiting


def _activities(
    adapters: Adapters, settings: WorkerSettings, registry_settings: RegistrySettings
) -> tuple[list[Callable[..., Any]], list[Callable[..., Any]]]:
    """Build everything a release calls: short commands, and what waits for others."""
    lost_after = timedelta(seconds=registry_settings.lost_after)
    poll = timedelta(seconds=settings.fleet_poll)
    registry, mesh, cluster = adapters.registry, adapters.mesh, adapters.cluster
    fleet = FleetActivities(registry=registry, cluster=cluster, lost_after=lost_after, poll=poll)
    pods = ClusterActivities(registry=registry, cluster=cluster, lost_after=lost_after, poll=poll)
    approvals = ApprovalActivities(
        registry=registry, operator_may_approve=registry_settings.pusher_may_approve
    )
    checks = PlanChecks(
        traffic=MeasuredTraffic(reader=adapters.reader),
        highest_load=settings.highest_load,
        channels=adapters.channels,
    )
    admission = RegistryActivities(
        registry=registry,
        mesh=mesh,
        cluster=cluster,
        approvals=approvals,
        checks=checks,
        lost_after=lost_after,
    )
    waves, traffic = WaveActivities(registry=registry), MeshActivities(mesh=mesh)
    metrics = MetricsActivities(reader=adapters.reader, registry=registry, mesh=mesh, lost_after=lost_after)
    joined = JoinedWaits(fleet=fleet, judge=metrics, publisher=admission, mesh=mesh)
    commands: list[Callable[..., Any]] = [
        *(admission.admit, admission.publish, admission.complete),
        *(waves.grant, waves.revoke),
        *(approvals.check, fleet.check_capacity, fleet.warm_up),
        *(traffic.write, traffic.read),
    ]
    waits: list[Callable[..., Any]] = [
        *(fleet.download, fleet.verify, fleet.warm_up),
        *(joined.swap, joined.adopt, metrics.observe),
        *(pods.scale_up, pods.scale_down),
        NotifyActivities(channels=adapters.channels).send,
    ]
    return commands, waits


async def _connect(temporal: TemporalSettings, settings: WorkerSettings) -> Client:
    runtime = Runtime(
        telemetry=TelemetryConfig(metrics=PrometheusConfig(bind_address=settings.metrics_address))
    )
    return await connect(temporal, runtime=runtime)


async def _open(
    exits: contextlib.AsyncExitStack,
    registry_settings: RegistrySettings,
    authoriser: ReleaseAuthoriser | None,
    notify_settings: NotifySettings,
) -> Adapters:
    """Open what the settings name, and close it with the stack."""
    registry = await PostgresRegistry.connect(
        dsn=registry_settings.dsn.get_secret_value(),
        pool_size=registry_settings.pool_size,
        timeout=registry_settings.timeout,
        authoriser=authoriser,
    )
    exits.push_async_callback(registry.close)
    mesh, cluster = open_mesh(MeshSettings()), open_cluster(ClusterSettings())
    exits.push_async_callback(mesh.aclose)
    exits.push_async_callback(cluster.aclose)
    http = await exits.enter_async_context(httpx.AsyncClient(trust_env=False))
    return Adapters(
        registry=registry,
        mesh=mesh,
        cluster=cluster,
        reader=PrometheusReader(settings=MetricsSettings()),
        channels=open_channels(notify_settings, http),
    )


async def main() -> None:
    """Run both workers until SIGTERM or SIGINT, then let activities end gracefully."""
    settings, temporal, registry_settings = WorkerSettings(), TemporalSettings(), RegistrySettings()
    authoriser, notify_settings = release_authoriser(AuthorisationSettings()), channel_settings()
    client = await _connect(temporal, settings)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        workers = build_workers(
            client,
            adapters=await _open(stack, registry_settings, authoriser, notify_settings),
            settings=settings,
            registry_settings=registry_settings,
        )
        for worker in workers:
            await stack.enter_async_context(worker)
        await stop.wait()


def prefer_short_pauses() -> None:
    """Set the interpreter up for many judges and quick rollbacks; for the process of a worker only."""
    take_turns_of(_PROCESSOR_TURN_SECONDS)
    sys.setswitchinterval(_THREAD_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def run() -> None:
    """Run as a process; an error of ours is one line on standard error."""
    prefer_short_pauses()
    try:
        asyncio.run(main())
    except WeightshiftError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    run()
