"""People at the gates: who counts, what goes on while a release waits, and what a refusal changes."""

from datetime import timedelta

import pytest

from activities.options import OBSERVE
from tests.workflow.harness import FAST_PLAN, Harness, time_skipping_server
from tests.workflow.history_rules import commands
from weightshift.contracts.identity import Service
from weightshift.contracts.plan import Plan, Stage
from weightshift.contracts.release import (
    Intervention,
    Outcome,
    ReleasePhase,
    RollbackRequest,
)
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import ApprovalInvalid, InvalidInput, UnknownApproval
from weightshift.way_back import going_back_key

AT_START = FAST_PLAN.model_copy(update={"approvals": 2})
AT_FIFTY = FAST_PLAN.model_copy(
    update={
        "stages": (Stage(weight=25), Stage(weight=50, approvals=1), Stage(weight=100)),
    }
)


async def start_and_wait(harness: Harness, plan: Plan) -> None:
    await harness.start("v42", plan)
    # Before any traffic no timer runs, and an idle clock leaps for years.
    wait = harness.until_in_real_time if plan.approvals else harness.until
    await wait(lambda: harness.is_in(ReleasePhase.AWAITING_APPROVAL))


async def end(harness: Harness) -> None:
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()


async def test_no_traffic_moves_before_enough_people_approved(harness: Harness) -> None:
    before = harness.splits()
    await start_and_wait(harness, AT_START)
    status = await harness.client.status(harness.service)
    assert status.held
    command = f"weightshift release approve ranker -e {harness.service.environment}"
    assert status.waiting_for == f"2 approvals before 5 %: {command}"
    assert (await harness.approve("ada")).waiting_for.startswith("1 approval before 5 %")
    assert harness.splits() == before
    status = await harness.approve("bob")
    assert status.waiting_for == ""
    assert (await harness.result()).outcome is Outcome.PROMOTED
    rows = await harness.registry.audit(harness.service, release_id=status.release_id)
    told = [(row.operator, row.summary) for row in rows if row.step == "awaiting-approval"]
    assert told[1:] == [
        ("ada", "ada approved 5 %, 1 of 2 people"),
        ("bob", "bob approved 5 %, 2 of 2 people"),
    ]


async def test_a_breach_while_people_think_rolls_back(harness: Harness) -> None:
    await start_and_wait(harness, AT_FIFTY)
    assert harness.splits()[-1] == "75/25"
    harness.observations.outcomes[25] = [StageOutcome.BREACH]
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "100/0")
    assert [one.mode for one in harness.observations.asked] == ["window", "watch"]
    starts = {one.started_at for one in harness.observations.asked}
    assert len(starts) == 1, "the stage is judged from its start"


UNJUDGED_BEFORE_FIFTY = FAST_PLAN.model_copy(
    update={
        "stages": (
            Stage(weight=25, window=timedelta(), max_window=timedelta()),
            Stage(weight=50, approvals=1),
            Stage(weight=100),
        ),
        # Its timers are those of the stages after the gate.
        "window": timedelta(),
    }
)


async def test_a_stage_without_a_window_is_judged_while_people_think(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42", UNJUDGED_BEFORE_FIFTY)
    await harness.until_in_real_time(harness.watches(25))
    harness.observations.outcomes[25] = [StageOutcome.BREACH]
    harness.observations.blocked.clear()
    result = await harness.result()
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "scripted breach")


async def test_a_stage_without_a_window_is_judged_until_people_approve(harness: Harness) -> None:
    await harness.start("v42", UNJUDGED_BEFORE_FIFTY)
    await harness.until_in_real_time(harness.watches(25))
    await harness.approve("ada")
    assert (await harness.result()).outcome is Outcome.PROMOTED
    asked = [(one.stage.weight, one.mode) for one in harness.observations.asked[:2]]
    assert asked == [(25, "watch"), (50, "window")]


async def test_going_back_is_judged_by_nobody_while_people_think(harness: Harness) -> None:
    back = harness.request("v42", UNJUDGED_BEFORE_FIFTY)
    await harness.client.start(back.model_copy(update={"request_key": going_back_key("R0")}))
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.AWAITING_APPROVAL))
    await harness.approve("ada")
    assert (await harness.result()).outcome is Outcome.PROMOTED
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    events = [event async for event in handle.fetch_history_events()]
    judged = [one.asked["stage"]["weight"] for one in commands(events) if one.name == OBSERVE.name]
    assert judged == [50, 100]


async def test_a_gate_in_the_middle_opens_by_its_approval(harness: Harness) -> None:
    await start_and_wait(harness, AT_FIFTY)
    assert (await harness.approve("ada")).phase in (ReleasePhase.AWAITING_APPROVAL, ReleasePhase.OBSERVING)
    assert (await harness.result()).outcome is Outcome.PROMOTED
    assert harness.splits()[-4:] == ["50/50", "0/100, 5 % mirrored to stable", "0/100", "100/0"]


async def test_an_approval_given_ahead_counts_for_the_next_gate(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42", AT_FIFTY)
    await harness.until_judging(25)
    assert (await harness.client.status(harness.service)).approval_refusal == ""
    await harness.approve("ada")
    harness.observations.blocked.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_rollback_wins_while_people_think(harness: Harness) -> None:
    await start_and_wait(harness, AT_FIFTY)
    status = await harness.client.rollback(harness.service, RollbackRequest(reason="no"))
    assert str(status.split) == "100/0"
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


async def test_promote_does_not_stand_in_for_people(harness: Harness) -> None:
    await start_and_wait(harness, AT_FIFTY)
    with pytest.raises(InvalidInput, match="nothing to skip while awaiting-approval"):
        await harness.client.promote(harness.service)
    await end(harness)


async def test_a_paused_release_stays_though_it_is_approved(harness: Harness) -> None:
    await start_and_wait(harness, AT_START)
    before = harness.splits()
    await harness.client.pause(harness.service, Intervention(operator="eve", reason="lunch"))
    await harness.approve("ada")
    await harness.approve("bob")
    assert harness.splits() == before
    await harness.client.resume(harness.service, Intervention(operator="eve"))
    result = await harness.result()
    assert result.outcome is Outcome.PROMOTED
    rows = await harness.registry.audit(harness.service, release_id=result.release_id)
    told = [(row.operator, row.summary) for row in rows]
    assert ("eve", "paused (eve): lunch") in told
    assert ("eve", "resumed (eve)") in told


async def test_one_person_counts_once_and_so_does_one_approval(harness: Harness) -> None:
    await start_and_wait(harness, AT_START)
    first = await harness.give("ada")
    await harness.client.approve(harness.service, first.approval_id)
    with pytest.raises(ApprovalInvalid, match="counted before"):
        await harness.client.approve(harness.service, first.approval_id)
    with pytest.raises(ApprovalInvalid, match="another person"):
        await harness.approve("ada")
    assert (await harness.client.status(harness.service)).waiting_for.startswith("1 approval ")
    await end(harness)


async def test_whoever_asked_for_the_release_is_never_its_only_approver(harness: Harness) -> None:
    await start_and_wait(harness, FAST_PLAN.model_copy(update={"approvals": 1}))
    assert (await harness.approve("ci")).waiting_for.startswith("1 approval ")
    await harness.approve("ada")
    assert (await harness.result()).outcome is Outcome.PROMOTED


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"release_id": "R-other"}, "it is for release R-other"),
        ({"artifact_id": "v43"}, "it is for artifact v43"),
        ({"service": Service(model="ranker", environment="elsewhere")}, "it is for elsewhere/ranker"),
        ({"lifetime": timedelta(microseconds=1)}, "it expired"),
    ],
    ids=["release", "artifact", "service", "expired"],
)
async def test_an_approval_of_something_else_is_refused(
    harness: Harness, changes: dict[str, object], problem: str
) -> None:
    await start_and_wait(harness, AT_FIFTY)
    foreign = await harness.give("ada", **changes)
    with pytest.raises(ApprovalInvalid, match=problem):
        await harness.client.approve(harness.service, foreign.approval_id)
    with pytest.raises(UnknownApproval):
        await harness.client.approve(harness.service, "nonsense")
    assert await harness.is_in(ReleasePhase.AWAITING_APPROVAL), "a refusal changes nothing"
    await end(harness)


async def test_nothing_can_be_approved_where_nothing_waits(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    assert (await harness.client.status(harness.service)).approval_refusal == "no approval is waited for"
    with pytest.raises(ApprovalInvalid, match="no approval is waited for"):
        await harness.client.approve(harness.service, "anything")
    await end(harness)


async def test_approvals_given_before_the_start_open_the_first_gate(harness: Harness) -> None:
    request = harness.request("v42", AT_START)
    given = [
        await harness.give(name, release_id=request.release_id, artifact_id="v42") for name in ("ada", "bob")
    ]
    ids = tuple(one.approval_id for one in given)
    await harness.client.start(request.model_copy(update={"approvals": ids}))
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_a_release_with_a_foreign_approval_is_not_admitted(harness: Harness) -> None:
    given = await harness.give("ada", release_id="R-other", artifact_id="v42")
    request = harness.request("v42").model_copy(update={"approvals": (given.approval_id,)})
    await harness.client.start(request)
    with pytest.raises(ApprovalInvalid, match="R-other"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    assert (await harness.release("v42")).outcome is Outcome.PROMOTED, "no lock was left behind"


async def test_a_first_release_has_one_gate_the_strictest_of_its_plan() -> None:
    async with time_skipping_server() as environment, Harness(environment).waiting() as harness:
        await harness.start("v41", AT_FIFTY)
        await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.AWAITING_APPROVAL))
        assert (await harness.client.status(harness.service)).waiting_for.startswith(
            "1 approval before 100 %"
        )
        assert (await harness.registry.targets(harness.service)).stable is None
        await harness.approve("ada")
        assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_a_first_release_that_nobody_approves_can_be_withdrawn() -> None:
    async with time_skipping_server() as environment, Harness(environment).waiting() as harness:
        await harness.start("v41", AT_FIFTY)
        await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.AWAITING_APPROVAL))
        await harness.client.rollback(harness.service, RollbackRequest())
        await harness.result()
        assert (harness.splits(), (await harness.registry.targets(harness.service)).stable) == ([], None)
