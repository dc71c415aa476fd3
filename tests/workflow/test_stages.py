"""Forward: stages, windows, holds, pauses, evidence."""

import asyncio
from datetime import timedelta

import pytest

from tests.workflow.harness import FAST_PLAN, Harness
from weightshift.contracts.commands import CarriedWealth
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import OnInconclusive
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import InvalidInput

MIRRORED = "0/100, 5 % mirrored to stable"


async def test_a_release_goes_through_every_stage(harness: Harness) -> None:
    result = await harness.release("v42")
    assert result.outcome is Outcome.PROMOTED
    assert harness.splits()[1:] == ["95/5", "75/25", "50/50", MIRRORED, "0/100", "100/0"]
    assert await harness.serves(Cohort.STABLE, "v42")
    assert await harness.serves(Cohort.CANARY, "v42")
    served = [artifact for instance, _, artifact in harness.fleet.served if instance == "canary-0"]
    assert served == ["v41", "v42", "v41", "v42"], "the previous artifact stays warm as the way back"


async def test_the_story_is_evidence_in_the_audit_chain(harness: Harness) -> None:
    result = await harness.release("v42")
    rows = await harness.registry.audit(harness.service, release_id=result.release_id)
    told = [row.summary for row in rows]
    assert any("5 %: healthy" in text for text in told)
    assert any("promoted" in text for text in told)
    verdicts = [row.data["verdict"] for row in rows if "verdict" in row.data]
    assert [verdict["outcome"] for verdict in verdicts] == ["healthy"] * 4


async def test_a_four_stage_release_has_a_short_history(harness: Harness) -> None:
    harness.observations.patient = True
    await harness.release("v42", FAST_PLAN.model_copy(update={"window": timedelta(milliseconds=200)}))
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    events = [event async for event in handle.fetch_history_events()]
    assert len(events) < 150


async def test_windows_are_durable_timers(harness: Harness) -> None:
    before = await harness.environment.get_current_time()
    await harness.release("v42")
    after = await harness.environment.get_current_time()
    assert after - before >= timedelta(minutes=4 * 10 + 30)


async def test_a_status_tells_the_judges_latest_word(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    async with asyncio.timeout(10):
        while not (status := await harness.client.status(harness.service)).judging:
            await asyncio.sleep(0.05)
    assert status.judging == "7 of 200 samples"
    harness.observations.blocked.clear()
    await harness.result()
    assert (await harness.client.status(harness.service)).judging == ""


async def test_promote_skips_the_rest_of_a_window(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.client.promote(harness.service)
    await harness.until_judging(25)
    harness.observations.blocked.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_an_inconclusive_stage_holds_and_then_goes_on(harness: Harness) -> None:
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE, StageOutcome.HEALTHY]
    result = await harness.release("v42")
    assert result.outcome is Outcome.PROMOTED
    assert [one.mode for one in harness.observations.asked if one.stage.weight == 5] == ["window", "hold"]


async def test_a_held_release_says_why_and_what_would_release_it(harness: Harness) -> None:
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE, StageOutcome.BREACH]
    harness.observations.patient = True
    await harness.start("v42", FAST_PLAN.model_copy(update={"window": timedelta(milliseconds=500)}))

    async def held() -> bool:
        return (await harness.client.status(harness.service)).held

    await harness.until_in_real_time(held)
    command = f"weightshift release promote ranker -e {harness.service.environment}"
    status = await harness.client.status(harness.service)
    assert status.waiting_for == f"evidence (scripted inconclusive); without it: {command}"
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


async def test_a_paused_release_stays_and_keeps_judging(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.client.pause(harness.service)
    harness.observations.outcomes[5] = [StageOutcome.HEALTHY, StageOutcome.BREACH]
    harness.observations.blocked.clear()
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK, "a breach counts while a person thinks"
    assert [one.mode for one in harness.observations.asked] == ["window", "watch"]


async def test_a_pause_stops_the_deadlines_clock(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE, StageOutcome.HEALTHY]
    await harness.start("v42", FAST_PLAN.model_copy(update={"on_inconclusive": OnInconclusive.ROLLBACK}))
    await harness.until_judging(5)
    await harness.client.pause(harness.service)
    await harness.client.resume(harness.service)
    harness.observations.blocked.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED, "the deadline was not reached yet"
    first, second = (one for one in harness.observations.asked if one.stage.weight == 5)
    assert second.mode == "window"
    assert second.stage.max_window > first.stage.max_window == FAST_PLAN.max_window


@pytest.mark.parametrize("weight", [5, 100])
async def test_a_stage_skipped_while_paused_is_judged_on(harness: Harness, weight: int) -> None:
    harness.observations.blocked.add(weight)
    await harness.start("v42")
    await harness.until_judging(weight)
    await harness.client.pause(harness.service)
    await harness.client.promote(harness.service)
    await harness.until_in_real_time(harness.watches(weight))
    harness.observations.outcomes[weight] = [StageOutcome.BREACH]
    harness.observations.blocked.clear()
    result = await harness.result()
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "scripted breach")


async def test_what_a_skipped_stage_gathered_stays_evidence(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    harness.observations.wealth = {"hard": CarriedWealth(active=(0.5,), idle=0.25)}
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.client.pause(harness.service)
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE]
    harness.observations.blocked.clear()
    await harness.until_in_real_time(harness.watches(5))
    await harness.client.promote(harness.service)
    await harness.client.resume(harness.service)
    await harness.result()
    first, second = (
        next(one for one in harness.observations.asked if one.stage.weight == weight) for weight in (5, 25)
    )
    assert (first.wealth, second.wealth) == ({}, harness.observations.wealth)


async def test_a_pause_before_the_first_stage_keeps_all_traffic_on_stable(harness: Harness) -> None:
    harness.fleet.stuck.add("v42")
    await harness.start("v42")
    await harness.until(lambda: harness.is_in(ReleasePhase.WARMING_UP))
    await harness.client.pause(harness.service)
    before = harness.splits()
    harness.fleet.stuck.clear()

    async def warm() -> bool:
        status = await harness.client.status(harness.service)
        return any("warming-up: 2" in step.text for step in status.steps)

    await harness.until_in_real_time(warm)  # an idle clock leaps for years
    assert harness.splits() == before
    await harness.client.resume(harness.service)
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_a_resumed_release_goes_on(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.client.pause(harness.service)
    await harness.client.resume(harness.service)
    harness.observations.blocked.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_nothing_can_be_skipped_while_nothing_waits(harness: Harness) -> None:
    harness.fleet.stuck.add("v42")
    await harness.start("v42")
    await harness.until(lambda: harness.is_in(ReleasePhase.WARMING_UP))
    with pytest.raises(InvalidInput, match="nothing to skip"):
        await harness.client.promote(harness.service)
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()
