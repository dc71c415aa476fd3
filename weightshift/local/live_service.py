"""A whole local stack with a released model, under checked traffic: for faults and benchmarks."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from ulid import ULID

from weightshift.client import ReleaseClient
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import ReleaseRequest, ReleaseResult, ReleaseStatus
from weightshift.errors import LocalStackError
from weightshift.local.demo_artifacts import store_and_approve
from weightshift.local.demo_models import RECIPES, build_models
from weightshift.local.stack import LocalStack
from weightshift.local.traffic_process import TrafficProcess
from weightshift.registry.client import RegistryClient
from weightshift.settings import TemporalSettings

AT_ONCE = Plan.model_validate({"stages": [100], "window": 0, "max_window": 0, "retain": 0})
"""No windows: as fast as the parts allow."""
_LONGEST_RELEASE_SECONDS = 120.0


@dataclass
class LiveService:
    """The running stack and the ways to reach it."""

    stack: LocalStack
    client: ReleaseClient
    registry: RegistryClient
    temporal: Client
    directory: Path

    @property
    def command_environment(self) -> dict[str, str]:
        """The environment in which the `weightshift` command reaches this stack."""
        return {**os.environ, **self.stack.environment}

    async def push(self, artifact_id: str) -> None:
        """Store and approve one of the demonstration's models."""
        await store_and_approve(self.registry, self.directory / "models" / artifact_id)

    async def start(self, artifact_id: str, plan: Plan, *, allow_schema_change: bool = False) -> None:
        """Start a release."""
        await self.client.start(
            ReleaseRequest(
                release_id=str(ULID()),
                service=self.stack.service,
                artifact_id=artifact_id,
                plan=plan,
                operator="tests",
                allow_schema_change=allow_schema_change,
            )
        )

    async def release(
        self, artifact_id: str, plan: Plan, *, allow_schema_change: bool = False
    ) -> ReleaseStatus:
        """Start a release and wait until it has let go of everything."""
        await self.start(artifact_id, plan, allow_schema_change=allow_schema_change)
        await self.ended()
        return await self.client.status(self.stack.service)

    async def ended(self) -> ReleaseResult:
        """Wait until the release has let go of everything. Raises TimeoutError after two minutes."""
        async with asyncio.timeout(_LONGEST_RELEASE_SECONDS):
            return await self.client.result(self.stack.service)

    @contextlib.asynccontextmanager
    async def traffic(self, *released: str, rate: float = 100) -> AsyncIterator[TrafficProcess]:
        """Send checked traffic through Envoy for the length of the block.

        Raises `LocalStackError` at its end when a single request failed or was answered wrongly.
        """
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
        if figures["failed"] or figures["misrouted"]:
            raise LocalStackError(f"traffic: requests failed or were misrouted: {figures}")

    async def history(self) -> list[HistoryEvent]:
        """Return the events of the latest release."""
        handle = self.temporal.get_workflow_handle(self.stack.service.workflow_id)
        return [event async for event in handle.fetch_history_events()]


@contextlib.asynccontextmanager
async def live_service(directory: Path) -> AsyncIterator[LiveService]:
    """Start a stack with v41 released and v42 ready."""
    build_models(directory / "models", RECIPES[:2])
    async with contextlib.AsyncExitStack() as exits:
        stack = await exits.enter_async_context(LocalStack(directory / "stack"))
        with _environment(stack.environment):
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


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Let settings and boto3 find the stack for the length of the block."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
