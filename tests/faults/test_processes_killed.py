"""kill -9 in the middle of a release, under traffic that counts every failed or wrong answer."""

import asyncio
import itertools
import time
from dataclasses import dataclass
from datetime import datetime

import pytest

from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase
from weightshift.local.live_service import LiveService

# Longer than it takes Temporal to notice the loss of the judge (its heartbeat) and to start it anew: only
# then can a judgement that answers too early after a restart cut a window short.
WINDOW_SECONDS = 20.0
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


@dataclass
class Shift:
    """One mesh write of a release, as its history tells it."""

    scheduled: datetime
    completed: datetime | None = None
    attempts: int = 0


async def mesh_writes(live: LiveService) -> list[Shift]:
    """Every mesh write that the latest release scheduled, completed or not."""
    shifts: dict[int, Shift] = {}
    for event in await live.history():
        at = event.event_time.ToDatetime()
        if event.activity_task_scheduled_event_attributes.activity_type.name == "mesh.write":
            shifts[event.event_id] = Shift(at)
        started = event.activity_task_started_event_attributes
        if started.scheduled_event_id in shifts:
            shifts[started.scheduled_event_id].attempts = started.attempt
        completed = event.activity_task_completed_event_attributes.scheduled_event_id
        if completed in shifts:
            shifts[completed].completed = at
    return list(shifts.values())


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
    assert [write.attempts for write in writes] == [1] * 4, "50 %, 100 % mirrored and not, back: each once"
    for write, following in itertools.pairwise(writes[:3]):
        assert write.completed is not None
        window = (following.scheduled - write.completed).total_seconds()
        assert window >= WINDOW_SECONDS, "a window was cut short"


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
