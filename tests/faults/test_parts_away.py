"""Rollback while parts of the control plane are away, under traffic that counts every failure."""

import asyncio
import json

import pytest

from tests.faults.injection import command
from tests.workflow.receiver import receiving
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.local.live_service import AT_ONCE, LiveService

HELD = Plan.model_validate({"stages": [50, 100], "window": "10m", "retain": 0})


async def until_half(live: LiveService) -> None:
    async with asyncio.timeout(60):
        while True:
            status = await live.client.status(live.stack.service)
            if status.phase is ReleasePhase.OBSERVING and status.split and status.split.canary == 50:
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("away", ["postgres", "prometheus", "registry", "s3"])
async def test_traffic_goes_back_while_a_part_is_away(live: LiveService, away: str) -> None:
    async with live.traffic("v41", "v42"):
        await live.start("v42", HELD)
        await until_half(live)
        await live.stack.kill(away)
        try:
            status = await live.client.rollback(live.stack.service, RollbackRequest(reason=f"{away} is away"))
            assert str(status.split) == "100/0"
        finally:
            await live.stack.start(away)
        result = await live.ended()
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")


@pytest.mark.slow
async def test_traffic_goes_back_while_nobody_takes_notifications(live: LiveService) -> None:
    with receiving() as receiver:
        channel = {"releases": {"url": receiver.url, "secret": "correct horse battery staple"}}
        await live.stack.stop("worker")
        await live.stack.start("worker", added={"WEIGHTSHIFT_NOTIFY_CHANNELS": json.dumps(channel)})
        async with live.traffic("v41", "v42"):
            await live.start("v42", HELD.model_copy(update={"notify": ("releases",)}))
            await until_half(live)
            async with asyncio.timeout(30):
                while receiver.events() != ["start", "stage"]:
                    await asyncio.sleep(0.05)
            receiver.hangs.set()
            status = await live.client.rollback(live.stack.service, RollbackRequest(reason="smells"))
            assert str(status.split) == "100/0"
            assert receiver.answered == 2, "the rollback waited for nobody"
            result = await live.ended()
    assert result.outcome is Outcome.ROLLED_BACK
    assert receiver.events() == ["start", "stage", "rollback", "end"]


@pytest.mark.slow
async def test_breaking_the_glass_while_temporal_is_away(live: LiveService) -> None:
    where = ("ranker", "-e", live.stack.service.environment)
    async with live.traffic("v41", "v42"):
        await live.start("v42", HELD)
        await until_half(live)
        await live.stack.kill("temporal")
        try:
            state = await command(live, "release", "rollback", *where, "--break-glass")
            assert state["split"] == {"stable": 100, "canary": 0}
        finally:
            await live.stack.start("temporal")
        await live.client.rollback(live.stack.service, RollbackRequest(reason="smelled"))
        result = await live.ended()
    assert result.outcome is Outcome.ROLLED_BACK
    outcome = (await live.release("v42", AT_ONCE)).outcome
    assert outcome is Outcome.PROMOTED, "the next release is above the broken glass"


@pytest.mark.slow
async def test_going_back_after_completion(live: LiveService) -> None:
    where = ("ranker", "-e", live.stack.service.environment)
    async with live.traffic("v41", "v42"):
        for artifact_id in ("v41", "v42"):
            serving = (await live.registry.targets(live.stack.service)).stable
            if serving is None or serving.artifact_id != artifact_id:
                await live.release(artifact_id, AT_ONCE)
        answer = await command(live, "release", "rollback", *where, "--from", "v42")
        assert (answer["artifact_id"], answer["outcome"]) == ("v41", "promoted")
    serving = (await live.registry.targets(live.stack.service)).stable
    assert serving is not None
    assert serving.artifact_id == "v41"
