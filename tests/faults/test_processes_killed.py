"""kill -9 in the middle of a release, under traffic that counts every failed or wrong answer."""

import asyncio
import itertools
import time
from datetime import datetime

import pytest
from temporalio.api.enums.v1 import EventType

from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase
from weightshift.local.live_service import LiveService

WINDOW_SECONDS = 5.0
INTERVAL_SECONDS = 5.0
WIDE_GATES = [{"metric": "error_rate", "maximum": 0.3}]
STAGED = Plan.model_validate(
    {
        "stages": [50, 100],
        "window": WINDOW_SECONDS,
        "interval": 1,
        "max_window": "60s",
        "min_samples": 10,
        "retain": 0,
        "gates": WIDE_GATES,
    }
)
LONG = Plan.model_validate(
    {"stages": [50, 100], "window": "10m", "interval": INTERVAL_SECONDS, "retain": 0, "gates": WIDE_GATES}
)


async def until_observing(live: LiveService, weight: int) -> None:
    async with asyncio.timeout(60):
        while True:
            status = await live.client.status(live.stack.service)
            at = status.split.canary if status.split else 0
            if status.phase is ReleasePhase.OBSERVING and at == weight:
                return
            await asyncio.sleep(0.05)


async def mesh_writes(live: LiveService) -> list[tuple[datetime, datetime]]:
    """When each mesh write of the latest release was scheduled and completed."""
    scheduled: dict[int, datetime] = {}
    writes = []
    for event in await live.history():
        at = event.event_time.ToDatetime()
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            if event.activity_task_scheduled_event_attributes.activity_type.name == "mesh.write":
                scheduled[event.event_id] = at
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            began = scheduled.get(event.activity_task_completed_event_attributes.scheduled_event_id)
            if began is not None:
                writes.append((began, at))
    return writes


@pytest.mark.slow
async def test_a_killed_worker_goes_on_where_it_was(live: LiveService) -> None:
    async with live.traffic("v41", "v42"):
        await live.start("v42", STAGED)
        await until_observing(live, 50)
        await live.stack.kill("worker")
        await live.stack.start("worker")
        result = await live.ended()
    assert result.outcome is Outcome.PROMOTED
    writes = await mesh_writes(live)
    assert len(writes) == 3, "50 %, 100 %, back to stable: no traffic was shifted twice"
    for (_, shifted), (next_shift, _) in itertools.pairwise(writes):
        assert (next_shift - shifted).total_seconds() >= WINDOW_SECONDS, "a window was cut short"


@pytest.mark.slow
async def test_a_killed_canary_rolls_back_within_an_interval(live: LiveService) -> None:
    async with live.traffic("v41", "v42") as traffic:
        await live.start("v41", LONG)
        await until_observing(live, 50)
        await live.stack.kill("canary-0")
        killed = time.monotonic()
        result = await live.ended()
        seconds = time.monotonic() - killed
        before = traffic.figures["requests"]
        await traffic.wait_for(lambda figures: figures["requests"] > before + 100, seconds=30)
    await live.stack.start("canary-0")
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    assert "canary-0 is lost" in result.reason
    assert seconds < INTERVAL_SECONDS
