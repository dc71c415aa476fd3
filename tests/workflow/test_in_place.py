"""Promotion in place: waves by grants, and back from the middle of them."""

from datetime import timedelta

import pytest

from tests.workflow.harness import IN_PLACE, Harness
from tests.workflow.history_rules import has_open_timer
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import OnPartial, Plan
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import RouteInvalid

SHED = IN_PLACE.model_copy(update={"on_partial": OnPartial.SHED})


def stable_swaps(harness: Harness) -> list[str]:
    """The stable instances in the order in which they first served v42."""
    names = [name for name, _, artifact in harness.fleet.served if artifact == "v42"]
    return list(dict.fromkeys(name for name in names if name.startswith("stable")))


async def grants(harness: Harness) -> list[tuple[str, ...]]:
    rows = await harness.registry.audit(harness.service)
    return [tuple(row.data["grant"]["instance_ids"]) for row in rows if row.step == "grant-wave"]


async def until_the_second_wave_hangs(harness: Harness, plan: Plan) -> None:
    harness.fleet.stuck.add("stable-1 v42")
    await harness.start("v42", plan)

    async def hangs() -> bool:
        return len(await grants(harness)) == 2

    await harness.until(hangs)


async def test_stable_swaps_wave_by_wave_while_the_canary_keeps_its_share(harness: Harness) -> None:
    result = await harness.release("v42", IN_PLACE)
    assert result.outcome is Outcome.PROMOTED
    assert harness.splits()[1:] == ["95/5", "60/40", "100/0"]
    assert await grants(harness) == [("stable-0",), ("stable-1",)]
    assert stable_swaps(harness) == ["stable-0", "stable-1"]
    assert await harness.serves(Cohort.CANARY, "v42")
    target = (await harness.registry.targets(harness.service)).stable
    assert target is not None
    assert not target.requires_grant, "an instance that joined meanwhile is in no wave"


async def test_a_wave_may_be_the_whole_pool(harness: Harness) -> None:
    await harness.release("v42", IN_PLACE.model_copy(update={"wave": 10}))
    assert await grants(harness) == [("stable-0", "stable-1")]


async def test_the_next_wave_waits_until_this_one_serves(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", IN_PLACE)

    async def granted() -> bool:
        return bool(await grants(harness))

    await harness.until(granted)
    assert (await harness.client.status(harness.service)).way_back.startswith("reload")
    assert await grants(harness) == [("stable-0",)]
    assert stable_swaps(harness) == []
    harness.fleet.stuck.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_a_pause_stops_before_the_next_wave(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", IN_PLACE)

    async def granted() -> bool:
        return bool(await grants(harness))

    await harness.until(granted)
    await harness.client.pause(harness.service)
    harness.fleet.stuck.clear()

    async def first_wave_is_through() -> bool:
        steps = (await harness.client.status(harness.service)).steps
        return "promoting: 1 stable instances" in steps[-1].text

    await harness.until_in_real_time(first_wave_is_through)
    assert await grants(harness) == [("stable-0",)]
    await harness.client.resume(harness.service)
    assert (await harness.result()).outcome is Outcome.PROMOTED


@pytest.mark.parametrize(
    ("plan", "split_meanwhile"), [(IN_PLACE, "60/40"), (SHED, "100/0")], ids=["proportional", "shed"]
)
async def test_a_failed_wave_revokes_the_rest_and_goes_back(
    harness: Harness, plan: Plan, split_meanwhile: str
) -> None:
    harness.fleet.unfit.add("stable-1 v42")
    result = await harness.release("v42", plan)
    assert result.outcome is Outcome.ROLLED_BACK
    assert "IncompatibleModel" in result.reason
    # Both instances were granted, so that nothing is left that could carry more.
    assert harness.splits()[-2:] == [split_meanwhile, "100/0"]
    assert await harness.registry.wave_grants(harness.service) == ()
    for cohort in Cohort:
        assert await harness.serves(cohort, "v41")
    last = {name: artifact for name, _, artifact in harness.fleet.served}
    assert set(last.values()) == {"v41"}


async def test_the_canarys_share_falls_to_what_the_healthy_part_cannot_carry(harness: Harness) -> None:
    harness.fleet.unfit.add("stable-0 v42")
    result = await harness.release("v42", IN_PLACE)
    assert result.outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-3:] == ["60/40", "80/20", "100/0"], "half of stable was never granted"
    assert await grants(harness) == [("stable-0",)]


async def test_rollback_wins_in_the_middle_of_a_wave(harness: Harness) -> None:
    await until_the_second_wave_hangs(harness, IN_PLACE)
    answer = await harness.client.rollback(harness.service, RollbackRequest(reason="smells"))
    assert str(answer.split) == "100/0"
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert await harness.serves(Cohort.STABLE, "v41")


async def test_a_breach_between_waves_goes_back(harness: Harness) -> None:
    await until_the_second_wave_hangs(harness, IN_PLACE)
    assert harness.observations.asked[-1].mode == "watch", "the canary is judged on"
    harness.observations.outcomes[40] = [StageOutcome.BREACH]
    result = await harness.result()
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "scripted breach")
    assert await harness.serves(Cohort.STABLE, "v41")
    assert await harness.registry.wave_grants(harness.service) == ()


async def test_a_wave_that_never_serves_is_given_up(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-1 v42")
    # A wait on instances runs in real time: skipping stops while an activity does.
    result = await harness.release("v42", IN_PLACE.model_copy(update={"load_deadline": timedelta(seconds=1)}))
    assert result.outcome is Outcome.ROLLED_BACK
    assert "not done in time: waiting for stable-1" in result.reason


async def test_traffic_moves_while_the_registry_is_away(harness: Harness) -> None:
    await until_the_second_wave_hangs(harness, SHED)
    harness.registry.available = False
    await harness.client.signal_rollback(harness.service, RollbackRequest())

    async def moved() -> bool:
        return harness.splits()[-1] == "100/0"

    await harness.until_in_real_time(moved)
    harness.registry.available = True
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


async def under_a_small_parachute(harness: Harness, plan: Plan) -> None:
    await harness.start("v42", plan.model_copy(update={"window": timedelta(), "max_window": timedelta()}))

    async def parachute_is_up() -> bool:
        handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
        events = [event async for event in handle.fetch_history_events()]
        return await harness.is_in(ReleasePhase.PARACHUTE) and has_open_timer(events)

    await harness.until_in_real_time(parachute_is_up)


@pytest.mark.parametrize(
    ("plan", "splits"),
    [(IN_PLACE, ["60/40", "100/0"]), (SHED, ["0/100", "100/0"])],
    ids=["proportional", "shed"],
)
async def test_a_small_parachute_takes_what_it_can_carry(
    harness: Harness, plan: Plan, splits: list[str]
) -> None:
    await under_a_small_parachute(harness, plan)
    await harness.client.rollback(harness.service, RollbackRequest(reason="late"))
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-2:] == splits
    assert await harness.serves(Cohort.STABLE, "v41")


async def test_a_small_parachute_of_which_a_part_is_missing_takes_nothing(harness: Harness) -> None:
    await under_a_small_parachute(harness, IN_PLACE)
    before = len(harness.splits())
    harness.fleet.unfit.add("canary-0 v41")
    await harness.fleet.follow()
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="late"))
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[before:] == ["100/0"]


async def test_a_small_parachute_that_the_mesh_does_not_lead_to_keeps_no_rollback(harness: Harness) -> None:
    await under_a_small_parachute(harness, IN_PLACE)
    before = len(harness.splits())
    harness.mesh.failure = RouteInvalid("0 backends are canary, not one")
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="late"))

    async def stable_is_restored() -> bool:
        steps = (await harness.client.status(harness.service)).steps
        return "stable serves v41 again" in steps[-1].text

    await harness.until_in_real_time(stable_is_restored)
    harness.mesh.failure = None
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[before:] == ["100/0"]
