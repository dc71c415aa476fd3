"""A whole local stack with a released model, under traffic whose every answer is checked."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from ulid import ULID

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.open_store import open_store
from weightshift.artifacts.push import push_artifact
from weightshift.client import ReleaseClient, workflow_id
from weightshift.contracts.manifest import Precision, WeightFormat
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import ReleaseRequest, ReleaseStatus
from weightshift.local.demo_models import RECIPES, build_models
from weightshift.local.stack import LocalStack
from weightshift.local.traffic_process import TrafficProcess
from weightshift.registry.client import RegistryClient
from weightshift.settings import StoreSettings, TemporalSettings

AT_ONCE = Plan.model_validate({"stages": [100], "window": 0, "max_window": 0, "retain": 0})
"""No windows: as fast as the parts allow."""


@dataclass
class LiveService:
    """The running stack and the ways to reach it."""

    stack: LocalStack
    client: ReleaseClient
    registry: RegistryClient
    temporal: Client
    directory: Path

    async def push(self, artifact_id: str) -> None:
        """Store and approve one of the demonstration's models."""
        directory = self.directory / "models" / artifact_id
        service = self.stack.service
        manifest = build_manifest(
            directory,
            model=service.model,
            artifact_id=artifact_id,
            runtime=WeightFormat.SAFETENSORS,
            feature_schema="ranker-v1",
            precision=Precision.FP32,
            architecture="ranker",
        )
        store = open_store(StoreSettings())
        await self.registry.register_artifact(push_artifact(store, directory, manifest))
        await self.registry.approve_artifact(service.model, artifact_id)

    async def start(self, artifact_id: str, plan: Plan) -> None:
        """Start a release."""
        await self.client.start(
            ReleaseRequest(
                release_id=str(ULID()),
                service=self.stack.service,
                artifact_id=artifact_id,
                plan=plan,
                operator="tests",
            )
        )

    async def release(self, artifact_id: str, plan: Plan) -> ReleaseStatus:
        """Start a release and wait until it has let go of everything."""
        await self.start(artifact_id, plan)
        await self.client.result(self.stack.service)
        return await self.client.status(self.stack.service)

    @contextlib.asynccontextmanager
    async def traffic(self, *released: str, rate: float = 100) -> AsyncIterator[TrafficProcess]:
        """Send checked traffic through Envoy for the length of the block; no request may fail in it."""
        async with TrafficProcess(
            url=f"{self.stack.addresses.envoy}/predict",
            expectations=self.directory / "models" / "expectations.json",
            seconds=300,
            rate=rate,
            on_figures=lambda _: None,
        ) as traffic:
            for artifact_id in released:
                await traffic.allow(artifact_id)
            await traffic.wait_for(lambda figures: figures["requests"] > 0, seconds=30)
            yield traffic
            figures = await traffic.stop()
        assert (figures["failed"], figures["misrouted"]) == (0, 0), figures["failures"]

    async def history(self) -> list[HistoryEvent]:
        """Return the events of the latest release."""
        handle = self.temporal.get_workflow_handle(workflow_id(self.stack.service))
        return [event async for event in handle.fetch_history_events()]


@contextlib.asynccontextmanager
async def live_service(directory: Path) -> AsyncIterator[LiveService]:
    """Start a stack with v41 released and v42 ready."""
    build_models(directory / "models", RECIPES[:2])
    async with contextlib.AsyncExitStack() as exits:
        stack = await exits.enter_async_context(LocalStack(directory / "stack"))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in stack.environment.items():
                patch.setenv(name, value)
            temporal = TemporalSettings()
            client = await ReleaseClient.connect(settings=temporal)
            registry = RegistryClient(
                url=stack.environment["WEIGHTSHIFT_REGISTRY_URL"],
                token=stack.environment["WEIGHTSHIFT_REGISTRY_TOKEN"],
            )
            exits.push_async_callback(registry.aclose)
            live = LiveService(
                stack=stack,
                client=client,
                registry=registry,
                temporal=await Client.connect(temporal.address, data_converter=pydantic_data_converter),
                directory=directory,
            )
            for artifact_id in ("v41", "v42"):
                await live.push(artifact_id)
            await live.release("v41", AT_ONCE)
            yield live
