"""The six acceptance faults and a late writer, on the whole stack, in traffic whose every answer is checked.

Traffic runs through the real Envoy around every fault without a gap; a single request that fails, or is
answered by anything but what is released, fails the test.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.worker import Worker

from tests.faults.injection import (
    CANARY,
    answers,
    answers_with,
    canary_with,
    is_loading,
    metrics_of,
    noisy_notifications,
    overwrite,
    pair,
    push_small_model,
    until,
    until_served,
    until_split,
    within,
)
from tests.faults.late_commands import (
    LateCommands,
    commands_of,
    counted,
    frozen_worker,
    is_stopped,
    state_of,
)
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, RollbackRequest
from weightshift.local.demo_models import RECIPES, build_models
from weightshift.local.live_service import AT_ONCE, LiveService
from weightshift.local.ports import free_ports

ENDED_SECONDS = 60.0
"""By when a release has ended: most of it is the machine's, which runs the whole stack."""

ROLLBACK_SECONDS = 5.0
"""From the decision to the mesh's read-back, by the release's own clock."""

CONTROL_PLANE = ("worker", "registry", "mesh-agent", "prometheus", "temporal", "s3", "postgres")
HELD = Plan.model_validate(
    {
        "stages": [50, 100],
        "window": "10m",
        "interval": 1,
        "retain": 0,
        "gates": [{"metric": "error_rate", "maximum": 0.3}],
    }
)
HELD_AT_25 = Plan.model_validate(
    {
        "stages": [{"weight": 25, "window": "10m", "max_window": "20m"}, 50, 75, 100],
        "window": 0,
        "max_window": 0,
        "interval": 1,
        "retain": 0,
        "gates": [{"metric": "error_rate", "maximum": 0.3}],
    }
)
JUDGED_BY_LATENCY = HELD.model_copy(
    update={
        "gates": Plan.model_validate(
            {"gates": [{"metric": "error_rate", "maximum": 0.3}, {"metric": "latency", "ratio": 1.5}]}
        ).gates
    }
)

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(live: LiveService) -> AsyncIterator[LiveService]:
    """The stack, with a model beside that is so wide that it loads and answers slowly."""
    await asyncio.to_thread(build_models, live.directory / "models", RECIPES[:3])
    await live.push("v43")
    yield live


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("artifact_id", "change", "schema", "error"),
    [
        ("truncated", halved, "ranker-v1", "DigestMismatch"),
        ("flipped", flipped, "ranker-v1", "DigestMismatch"),
        ("misfit", None, "ranker-v2", "IncompatibleModel"),
    ],
)
async def test_a_bad_artifact_never_becomes_ready_and_stable_serves_on(
    live: LiveService,
    artifact_id: str,
    change: Callable[[bytes], bytes] | None,
    schema: str,
    error: str,
) -> None:
    key = await push_small_model(live, artifact_id, seed=len(artifact_id), feature_schema=schema)
    if change is not None:
        await asyncio.to_thread(overwrite, key, change)
    serving, _ = await pair(live)
    async with live.traffic(serving):
        async with within(ENDED_SECONDS):
            # Admission knows another schema by the registry's row: here the canary has to find out.
            refused = await live.release(artifact_id, AT_ONCE, allow_schema_change=True)
        assert refused.outcome is Outcome.REFUSED
        assert error in refused.reason
        await until_served(live, serving, "canary")
    assert refused.split is None or refused.split.canary == 0
    for instance in CANARY:
        assert f'artifact="{artifact_id}"' not in await metrics_of(live, instance), "it was installed"


async def test_a_candidate_that_loads_late_cannot_overwrite_a_rollback(live: LiveService) -> None:
    serving, _ = await pair(live)
    async with live.traffic(serving):
        await live.start("v43", HELD)
        await until(lambda: is_loading(live, "canary-0", "v43"))
        frozen = live.stack.pid("canary-0")
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        try:
            async with within(ENDED_SECONDS):
                status = await live.client.rollback(live.stack.service, RollbackRequest(reason="too slow"))
                result = await live.ended()
            sealed = (await live.registry.targets(live.stack.service)).canary
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert result.outcome is Outcome.ROLLED_BACK
        assert (result.rollback_seconds or 0) < ROLLBACK_SECONDS
        assert sealed is not None
        assert (sealed.artifact_id, sealed.serve_floor) == (serving, sealed.revision)
        await until_served(live, serving, "canary")
    assert status.split is None or str(status.split) == "100/0"
    for instance in CANARY:
        text = await metrics_of(live, instance)
        assert 'artifact="v43"' not in text, "the late candidate was installed"
        assert re.search(rf"^weightshift_actual_revision\S* {sealed.revision}\.0$", text, re.MULTILINE)


async def test_a_canary_that_is_slow_under_traffic_is_stopped(live: LiveService) -> None:
    serving, _ = await pair(live)
    async with live.traffic(serving, "v43"):
        await live.start("v43", JUDGED_BY_LATENCY)
        await until_split(live, 50)
        async with within(ENDED_SECONDS):
            result = await live.ended()
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    assert (result.rollback_seconds or 0) < ROLLBACK_SECONDS
    assert "p99" in result.reason


async def test_a_canary_that_runs_out_of_memory_is_drained(live: LiveService, tmp_path: Path) -> None:
    """First for a candidate in its dry-run, then for every request, at 50 %."""
    switch = tmp_path / "memory-is-gone"
    hungry = {
        "WEIGHTSHIFT_RUNTIME_ARCHITECTURES": "hungry_ranker:HungryRanker",
        "PYTHONPATH": str(Path(__file__).parent),
        "MEMORY_IS_GONE": str(switch),
    }
    serving, other = await pair(live)
    ready = f"{live.stack.addresses.runtimes['canary-0']}/readyz"
    async with canary_with(live, serving, hungry), live.traffic(serving, other) as traffic:
        async with within(ENDED_SECONDS):
            refused = await live.release("v43", AT_ONCE)
        await until_served(live, serving, "canary")
        await live.start(other, HELD)
        await until_split(live, 50)
        await traffic.wait_for(lambda figures: other in figures["artifacts"], seconds=20)
        switch.touch()
        await until(lambda: answers_with(ready, 503), seconds=10)
        async with within(ENDED_SECONDS):
            result = await live.ended()
        switch.unlink()
        await until_served(live, serving, "canary")
    assert refused.outcome is Outcome.REFUSED
    assert "OutOfMemory" in refused.reason
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    assert "breached" in result.reason


async def test_cut_off_from_the_control_plane_verified_models_serve_on(live: LiveService) -> None:
    """Everything but Envoy and the runtimes dies; one runtime restarts meanwhile; then all is back."""
    serving, other = await pair(live)
    ready = f"{live.stack.addresses.runtimes['stable-1']}/readyz"
    async with live.traffic(serving, other) as traffic:
        await asyncio.gather(*(live.stack.kill(name) for name in CONTROL_PLANE))
        before = traffic.figures["requests"]
        await live.stack.stop("stable-1")
        await live.stack.start("stable-1")
        await until(lambda: answers_with(ready, 200))
        await traffic.wait_for(lambda figures: figures["requests"] > before + 300, seconds=30)
        for name in reversed(CONTROL_PLANE):
            await live.stack.start(name)
        async with noisy_notifications():
            async with within(ENDED_SECONDS):
                promoted = await live.release(other, AT_ONCE)
            await until_served(live, other, "stable")
            await until_served(live, other, "canary")
    assert promoted.outcome is Outcome.PROMOTED


async def test_a_runtime_told_to_end_while_traffic_shifts_never_comes_back(live: LiveService) -> None:
    ready = f"{live.stack.addresses.runtimes['canary-0']}/readyz"
    seen: list[int | None] = []

    async def has_ended() -> bool:
        seen.append(await answers(ready))
        return seen[-1] is None

    serving, other = await pair(live)
    async with live.traffic(serving, other) as traffic:
        await live.start(other, HELD)
        await until_split(live, 50)
        ending = live.stack.pid("canary-0")
        assert ending is not None
        os.kill(ending, signal.SIGTERM)
        await until(has_ended, seconds=20)
        async with within(ENDED_SECONDS):
            code = await live.stack.wait_ended("canary-0")
            result = await live.ended()
        before = traffic.figures["requests"]
        await traffic.wait_for(lambda figures: figures["requests"] > before + 100, seconds=30)
    await live.stack.start("canary-0")
    await until_served(live, serving, "canary")
    assert code == 0
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    assert "canary-0 is lost" in result.reason
    refusing = seen[seen.index(503) :]
    assert set(refusing) == {503, None}, "it was ready again after it had refused"


async def test_a_worker_told_to_end_while_traffic_shifts_loses_nothing(live: LiveService) -> None:
    serving, other = await pair(live)
    async with live.traffic(serving, other):
        await live.start(other, HELD_AT_25)
        await until_split(live, 25)
        await live.client.promote(live.stack.service)
        # The shifts to 50, 75 and 100 % are on their way now.
        await live.stack.stop("worker")
        await live.stack.start("worker")
        async with within(ENDED_SECONDS):
            result = await live.ended()
    assert (result.outcome, str(result.split)) == (Outcome.PROMOTED, "100/0")


async def test_a_worker_that_wakes_up_late_changes_nothing_blocks_nothing_and_is_counted(
    live: LiveService,
) -> None:
    serving, other = await pair(live)
    commands = await commands_of(live, serving, other)
    token = (live.stack.directory / "secrets/registry-metrics").read_text().strip()
    registry = live.stack.addresses.registry
    (port,) = free_ports(1)
    worker = Worker(live.temporal, task_queue="late", workflows=[LateCommands])
    async with live.traffic(serving, other), frozen_worker(live, port) as frozen, worker:
        await live.stack.stop("worker")
        started = await live.temporal.start_workflow("LateCommands", commands, id="late", task_queue="late")
        await until(lambda: is_stopped(frozen))
        await live.stack.start("worker")
        async with within(60):
            await started.result()
        before = await state_of(live)
        stale = await counted(registry, "weightshift_registry_stale_fences_total", token=token)
        os.kill(frozen, signal.SIGCONT)

        async def all_came_too_late() -> bool:
            late = await counted(registry, "weightshift_registry_stale_fences_total", token=token)
            refused = [
                await counted(f"http://127.0.0.1:{port}", rf'weightshift_stale_fences\S*="{command}"')
                for command in ("mesh.write", "registry.publish")
            ]
            return late - stale >= 3 and all(refused)

        await until(all_came_too_late, seconds=60)
        assert await state_of(live) == before
        async with within(60):
            released = await live.release(other, AT_ONCE)
    assert released.outcome is Outcome.PROMOTED
