"""Back, by every cause and from every position."""

import asyncio
from datetime import timedelta

import pytest

from tests.workflow.harness import UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.plan import OnInconclusive
from weightshift.contracts.release import Completion, Outcome, ReleasePhase, RollbackRequest
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import MeshUnreachable


async def test_a_breach_rolls_back_and_seals(harness: Harness) -> None:
    harness.observations.outcomes[25] = [StageOutcome.BREACH]
    result = await harness.release("v43")
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    assert harness.splits()[-1] == "100/0"
    targets = await harness.registry.targets(harness.service)
    assert targets.canary is not None
    assert targets.canary.artifact_id == "v41"
    assert targets.canary.serve_floor == targets.canary.revision, "nothing older may serve on the canary"
    assert (await harness.client.status(harness.service)).way_back == "none"
    rows = await harness.registry.audit(harness.service, release_id=result.release_id)
    assert [row.data["way_back"] for row in rows if "way_back" in row.data][-1] == "none"
    told = {row.summary for row in rows if "instances" in row.data}
    phases = ("downloading", "verifying", "warming-up")
    assert told == {f"{phase}: 2 canary instances, slowest 0.8 s" for phase in phases}


async def failed_activities(harness: Harness) -> list[str]:
    """The types of the activities of the latest release that failed."""
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    types: dict[int, str] = {}
    failed = []
    async for event in handle.fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes
        types[event.event_id] = scheduled.activity_type.name
        if event.HasField("activity_task_failed_event_attributes"):
            failed.append(types[event.activity_task_failed_event_attributes.scheduled_event_id])
    return failed


async def test_a_candidate_that_does_not_fit_is_refused_without_traffic(harness: Harness) -> None:
    harness.fleet.unfit.add("v43")
    result = await harness.release("v43")
    assert await failed_activities(harness) == ["fleet.verify"]
    assert result.outcome is Outcome.REFUSED
    assert "IncompatibleModel" in result.reason
    assert set(harness.splits()) == {"100/0"}
    assert await harness.serves(Cohort.CANARY, "v41")


@pytest.mark.parametrize("weight", [5, 25, 50, 100])
async def test_a_signal_rolls_back_from_every_stage(harness: Harness, weight: int) -> None:
    harness.observations.blocked.add(weight)
    await harness.start("v42")
    await harness.until_judging(weight)
    await harness.client.signal_rollback(harness.service, RollbackRequest(operator="sre", reason="smells"))
    result = await harness.result()
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "smells (sre)")
    assert harness.splits()[-1] == "100/0"
    assert result.rollback_seconds is not None


async def test_the_rollback_update_answers_when_traffic_is_back(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    status = await harness.client.rollback(harness.service, RollbackRequest(operator="sre"))
    assert str(status.split) == "100/0"
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


async def test_a_newer_command_that_owns_the_traffic_is_told(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.mesh.write(harness.service, TrafficSplit.with_canary(40), Fence.above_all(2))
    await harness.client.rollback(harness.service, RollbackRequest())
    result = await harness.result()
    assert str(result.split) == "60/40"
    assert "traffic is left at 60/40" in result.reason


async def test_rollback_does_not_wait_for_a_canary_that_never_loads(harness: Harness) -> None:
    harness.fleet.stuck.add("v42")
    await harness.start("v42")
    await harness.until(lambda: harness.is_in(ReleasePhase.WARMING_UP))
    await harness.client.rollback(harness.service, RollbackRequest())
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK
    assert await harness.serves(Cohort.CANARY, "v41")


async def test_cancellation_means_rollback(harness: Harness) -> None:
    harness.observations.blocked.add(50)
    await harness.start("v42")
    await harness.until_judging(50)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).cancel()
    result = await harness.result()
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "the workflow was cancelled")
    assert harness.splits()[-1] == "100/0"


async def test_a_cancellation_while_the_lock_is_taken_counts_once_it_is(harness: Harness) -> None:
    harness.registry.available = False
    await harness.start("v42")
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.ADMITTING))
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).cancel()
    before = harness.splits()
    harness.registry.available = True
    assert (await harness.result()).outcome is Outcome.REFUSED
    assert harness.splits() == before


async def test_rollback_while_stable_swaps_restores_it_before_moving_traffic(harness: Harness) -> None:
    harness.observations.blocked.add(100)
    await harness.start("v42")
    await harness.until_judging(100)
    harness.fleet.stuck.add("v42")
    harness.observations.blocked.clear()

    async def stable_is_swapping() -> bool:
        return (await harness.client.status(harness.service)).way_back.startswith("reload")

    await harness.until(stable_is_swapping)
    await harness.client.rollback(harness.service, RollbackRequest())
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-2:] == ["0/100", "100/0"]
    assert await harness.serves(Cohort.STABLE, "v41")
    assert await harness.serves(Cohort.CANARY, "v41")


async def test_rollback_under_the_parachute_cuts_to_the_canary_first(harness: Harness) -> None:
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()
    status = await harness.client.status(harness.service)
    assert status.outcome is Outcome.PROMOTED
    assert status.way_back_until is not None
    assert status.way_back_until >= status.steps[-1].at + UNJUDGED_PLAN.retain
    answer = await harness.client.rollback(harness.service, RollbackRequest(reason="late"))
    assert answer.way_back_until is None
    assert str(answer.split) in {"0/100", "100/0"}
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-2:] == ["0/100", "100/0"]
    assert await harness.serves(Cohort.STABLE, "v41")


async def test_rollback_beats_promote(harness: Harness) -> None:
    harness.observations.blocked.update({5, 25})
    await harness.start("v42")
    await harness.until_judging(5)
    await asyncio.gather(
        harness.client.signal_rollback(harness.service, RollbackRequest()),
        harness.client.promote(harness.service),
        return_exceptions=True,
    )
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


async def test_an_inconclusive_stage_rolls_back_when_the_plan_says_so(harness: Harness) -> None:
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE]
    plan = harness.request("v42").plan.model_copy(update={"on_inconclusive": OnInconclusive.ROLLBACK})
    result = await harness.release("v42", plan)
    assert (result.outcome, result.reason) == (
        Outcome.ROLLED_BACK,
        "inconclusive: scripted inconclusive",
    )


async def test_a_mesh_that_is_away_during_a_rollback_is_retried_until_it_returns(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.mesh.failure = MeshUnreachable()
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    before = harness.mesh.attempts

    async def retried() -> bool:
        return harness.mesh.attempts >= before + 5

    await harness.until(retried)
    assert harness.splits()[-1] == "75/25"
    harness.mesh.failure = None
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-1] == "100/0"


async def test_traffic_goes_back_while_the_registry_is_away(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.registry.available = False
    status = await harness.client.rollback(harness.service, RollbackRequest())
    assert str(status.split) == "100/0"
    harness.registry.available = True
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


async def test_a_release_that_cannot_record_its_end_can_still_be_taken_back(harness: Harness) -> None:
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()
    harness.registry.available = False
    await harness.client.promote(harness.service)
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.RETIRING))
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="after all"))
    harness.registry.available = True
    result = await harness.result()
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "after all (unknown)")
    assert await harness.serves(Cohort.STABLE, "v41")


async def test_a_signal_that_comes_when_the_end_is_being_recorded_is_told(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, go_on = asyncio.Event(), asyncio.Event()
    complete = harness.registry.complete

    async def complete_slowly(completion: Completion) -> None:
        recording.set()
        await go_on.wait()
        await complete(completion)

    monkeypatch.setattr(harness.registry, "complete", complete_slowly)
    await harness.start("v42", UNJUDGED_PLAN.model_copy(update={"retain": timedelta()}))
    async with asyncio.timeout(20):
        await recording.wait()
    for _ in range(2):
        await harness.client.signal_rollback(harness.service, RollbackRequest(operator="sre", reason="late"))
    go_on.set()
    assert (await harness.result()).outcome is Outcome.PROMOTED
    told = [step.text for step in (await harness.client.status(harness.service)).steps if "late" in step.text]
    where = f"ranker -e {harness.service.environment}"
    assert told == [
        "a rollback came too late: late (sre); this release went through, "
        f"go back with `weightshift release rollback {where}`"
    ]


async def test_a_question_that_nobody_answers_does_not_keep_a_rollback_waiting(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.registry.available = False
    # The capacity for the next weight is asked of a registry that is away.
    await harness.client.promote(harness.service)
    async with asyncio.timeout(20):
        status = await harness.client.rollback(harness.service, RollbackRequest(reason="smells"))
    assert str(status.split) == "100/0"
    harness.registry.available = True
    assert (await harness.result()).reason == "smells (unknown)"


async def test_a_question_is_asked_until_it_is_answered(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.registry.available = False
    await harness.client.promote(harness.service)
    harness.registry.available = True
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_a_cancellation_does_not_end_a_rollback_that_is_not_through(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", UNJUDGED_PLAN)

    async def tells(text: str) -> bool:
        return any(text in step.text for step in (await harness.client.status(harness.service)).steps)

    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.PROMOTING))
    harness.fleet.unfit.add("stable-0 v41")
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    await harness.until_in_real_time(lambda: tells("stable not restored yet"))
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).cancel()
    harness.fleet.unfit.clear()
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-1] == "100/0"
    assert await harness.serves(Cohort.STABLE, "v41")
