"""Temporal runs, but nobody takes the release any further: the glass is broken, in checked traffic.

While Temporal itself is away: `test_parts_away.py`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.faults.injection import (
    answers_with,
    carried,
    command,
    is_answered_by,
    pair,
    until,
    until_served,
    until_split,
    within,
)
from tests.faults.late_commands import counted, frozen_worker, is_stopped
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome
from weightshift.contracts.traffic import MeshState
from weightshift.errors import Unreachable
from weightshift.local.live_service import AT_ONCE, LiveService
from weightshift.local.ports import free_ports
from weightshift.local.traffic_process import TrafficProcess

WEDGED_WORKER = Path(__file__).parent / "wedged_worker.py"
NOBODY_ANSWERS_SECONDS = 50.0
ENDED_SECONDS = 90.0
"""Temporal's patience with a worker that vanished is most of it."""

HELD = Plan.model_validate({"stages": [50, 100], "window": "10m", "retain": 0})
STAGED = AT_ONCE.model_copy(update={"stages": HELD.stages})

pytestmark = pytest.mark.slow


@asynccontextmanager
async def wedged_worker(live: LiveService, port: int) -> AsyncIterator[None]:
    """Run the worker whose releases do not go on, its metrics on a port."""
    metrics = f"127.0.0.1:{port}"
    environment = {**live.command_environment, "WEIGHTSHIFT_WORKER_METRICS_ADDRESS": metrics}
    process = await asyncio.create_subprocess_exec(sys.executable, str(WEDGED_WORKER), env=environment)
    try:
        await until(lambda: answers_with(f"http://{metrics}/metrics", 200))
        yield
    finally:
        process.kill()
        await process.wait()


async def the_glass_is_broken(live: LiveService, traffic: TrafficProcess) -> MeshState:
    """Ask for the way back, learn that nobody answers and what to do, and do it; returns what that wrote."""
    where = ("ranker", "-e", live.stack.service.environment)
    async with within(NOBODY_ANSWERS_SECONDS):
        problem = await command(live, "release", "rollback", *where, code=Unreachable.exit_code)
    assert "--break-glass" in problem["error"]["message"]
    assert (await carried(live)).split.canary == 50
    await command(live, "release", "rollback", *where, "--break-glass")
    state = await carried(live)
    assert str(state.split) == "100/0"
    stable = (await live.registry.targets(live.stack.service)).stable
    assert stable is not None
    await is_answered_by(traffic, stable.revision)
    return state


async def is_over(live: LiveService, broken: MeshState, serving: str) -> None:
    """With a worker again the release ends rolled back, has moved nothing, and its evidence says so."""
    async with within(ENDED_SECONDS):
        result = await live.ended()
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    for cohort in Cohort:
        await until_served(live, serving, cohort)
    assert await carried(live) == broken, "the release wrote after the glass was broken"
    rows = await live.registry.audit(live.stack.service, result.release_id)
    assert any("was not moved to 100/0: StaleFence" in row.summary for row in rows)
    (who,) = [row for row in rows if row.step == "break-glass"]
    assert "traffic 100/0, it was 50/50" in who.summary


async def test_over_a_release_that_its_worker_cannot_take_further(live: LiveService) -> None:
    serving, other = await pair(live)
    (port,) = free_ports(1)
    async with live.traffic(serving, other) as traffic:
        await live.start(other, HELD)
        await until_split(live, 50)
        await live.stack.stop("worker")
        async with wedged_worker(live, port):
            broken = await the_glass_is_broken(live, traffic)
            failed = await counted(f"http://127.0.0.1:{port}", "temporal_workflow_task_execution_failed")
            assert failed > 0, "the release was not stuck"
        await live.stack.start("worker")
        await is_over(live, broken, serving)
        async with within(ENDED_SECONDS):
            following = await live.release(other, AT_ONCE)
    assert following.outcome is Outcome.PROMOTED, "the next release is above the broken glass"


async def test_over_a_worker_that_is_frozen_in_front_of_a_write(live: LiveService) -> None:
    serving, other = await pair(live)
    (port,) = free_ports(1)
    async with live.traffic(serving, other) as traffic:
        await live.stack.stop("worker")
        async with frozen_worker(live, port, after=2, before=1) as frozen:
            await live.start(other, STAGED)
            # It has published, given the canary half, and is about to give it everything.
            await until(lambda: is_stopped(frozen))
            broken = await the_glass_is_broken(live, traffic)
            await live.stack.start("worker")
            await is_over(live, broken, serving)
            os.kill(frozen, signal.SIGCONT)

            async def came_too_late() -> bool:
                refused = r'weightshift_stale_fences\S*="mesh.write"'
                return await counted(f"http://127.0.0.1:{port}", refused) > 0

            await until(came_too_late)
        assert await carried(live) == broken
