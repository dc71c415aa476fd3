"""Back from a canary that was given the traffic: stable gets none before it has left what it holds."""

import asyncio

import pytest
import pytest_asyncio

from tests.workflow.harness import UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase, ReleaseResult, RollbackRequest
from weightshift.contracts.target import Publication
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import Conflict
from weightshift.way_back import EXPEDITED_PLAN, next_way_back

SMALL_CANARY = Plan.model_validate(
    EXPEDITED_PLAN.model_dump(mode="json") | {"stages": [33], "promotion": "in-place", "wave": 2}
)
"""What `expedited_plan` makes of a canary that is half of stable."""


async def under_the_parachute_with_all_traffic(harness: Harness) -> None:
    """v42 was promoted and is bad; `--break-glass --cohort canary` gave all traffic to v41 on the canary."""
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(2))


@pytest_asyncio.fixture(loop_scope="session")
async def left(harness: Harness) -> Harness:
    """The release has ended since."""
    await under_the_parachute_with_all_traffic(harness)
    await harness.client.promote(harness.service)
    assert (await harness.result()).outcome is Outcome.PROMOTED
    return harness


async def ended(harness: Harness) -> ReleaseResult:
    """Wait for the end in real time: a wait on instances that was left behind stops the skipping."""
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.DONE))
    return await harness.result()


async def what_rollback_goes_back_to(harness: Harness) -> str | None:
    stable = (await harness.registry.targets(harness.service)).stable
    assert stable is not None
    return next_way_back(await harness.registry.releases(harness.service), stable.artifact_id)


async def assert_left_alone(harness: Harness, result: ReleaseResult) -> None:
    """The canary holds v41 with all traffic, and nothing was sealed."""
    assert (harness.splits()[-1], str(result.split)) == ("0/100", "0/100")
    canary = (await harness.registry.targets(harness.service)).canary
    assert canary is not None
    assert (canary.artifact_id, canary.serve_floor < canary.revision) == ("v41", True)
    assert "traffic stays at 0/100; try again with `weightshift release rollback ranker" in result.reason


async def test_a_warm_up_that_fails_leaves_traffic_where_it_is(left: Harness) -> None:
    before = len(left.splits())
    left.fleet.unfit.add("canary-0 v41")
    await left.go_back("v41")
    result = await ended(left)
    assert result.outcome is Outcome.REFUSED
    await assert_left_alone(left, result)
    assert await what_rollback_goes_back_to(left) == "v41"
    assert await left.serves(Cohort.STABLE, "v42")
    assert left.splits()[before:] == []
    left.fleet.unfit.clear()
    await left.go_back("v41")
    assert (await ended(left)).outcome is Outcome.PROMOTED
    assert left.splits()[before:] == ["0/100", "100/0"]
    assert await left.serves(Cohort.STABLE, "v41")


async def test_a_signal_during_the_warm_up_leaves_traffic_where_it_is(left: Harness) -> None:
    before = len(left.splits())
    left.fleet.stuck.add("canary-0 v41")
    await left.go_back("v41")
    await left.until_in_real_time(lambda: left.is_in(ReleasePhase.WARMING_UP))
    await left.client.signal_rollback(left.service, RollbackRequest(reason="wait"))
    result = await ended(left)
    assert result.outcome is Outcome.ROLLED_BACK
    await assert_left_alone(left, result)
    assert await what_rollback_goes_back_to(left) == "v41"
    assert left.splits()[before:] == []


@pytest.mark.parametrize("plan", [EXPEDITED_PLAN, SMALL_CANARY], ids=["idle", "in place"])
async def test_a_stable_that_cannot_follow_gets_no_traffic(left: Harness, plan: Plan) -> None:
    left.fleet.unfit.add("stable-0 v41")
    await left.go_back("v41", plan)
    result = await ended(left)
    assert result.outcome is Outcome.ROLLED_BACK
    await assert_left_alone(left, result)
    assert await what_rollback_goes_back_to(left) == "v41"
    assert await left.registry.wave_grants(left.service) == ()
    await left.start("v43", UNJUDGED_PLAN)
    with pytest.raises(Conflict, match=r"unjudged; go back to v41 with `weightshift release rollback ranker"):
        async with asyncio.timeout(20):
            await left.client.wait(left.service, on_status=lambda status: None)
    left.fleet.unfit.clear()
    await left.go_back("v41", plan)
    assert (await ended(left)).outcome is Outcome.PROMOTED
    assert left.splits()[-1] == "100/0"


async def test_a_small_canary_keeps_everything_until_stable_has_swapped(left: Harness) -> None:
    before = len(left.splits())
    left.fleet.stuck.add("stable-1 v41")
    await left.go_back("v41", SMALL_CANARY)

    async def granted() -> bool:
        return bool(await left.registry.wave_grants(left.service))

    await left.until_in_real_time(granted)
    status = await left.client.status(left.service)
    assert (str(status.split), status.way_back) == ("0/100", "none")
    assert left.splits()[before:] == []
    left.fleet.stuck.clear()
    assert (await ended(left)).outcome is Outcome.PROMOTED
    assert left.splits()[before:] == ["100/0"]


async def test_where_traffic_is_was_asked_of_the_mesh_at_the_end(left: Harness) -> None:
    """Somebody breaks the glass once more, to stable this time."""
    left.fleet.stuck.add("canary-0 v41")
    await left.go_back("v41")
    await left.until_in_real_time(lambda: left.is_in(ReleasePhase.WARMING_UP))
    await left.mesh.write(left.service, TrafficSplit.all_to(Cohort.STABLE), Fence.above_all(3))
    await left.client.signal_rollback(left.service, RollbackRequest())
    result = await ended(left)
    assert (left.splits()[-1], str(result.split)) == ("100/0", "100/0")
    assert "traffic stays at 100/0" in result.reason


async def test_a_stable_that_alone_holds_the_artifact_gets_the_traffic(harness: Harness) -> None:
    """The glass gave it to the wrong side: v41 serves on stable, and the canary holds v42."""
    publication = Publication(
        service=harness.service,
        cohort=Cohort.CANARY,
        artifact_id="v42",
        fence=Fence(epoch=1, sequence=1000),
        operation_id="left-behind",
        release_id="left-behind",
        operator="ci",
    )
    await harness.registry.publish(publication)
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(1))
    harness.fleet.unfit.add("canary-0 v41")
    await harness.go_back("v41")
    await ended(harness)
    assert harness.splits()[-1] == "100/0"
    assert await harness.serves(Cohort.CANARY, "v41"), "sealed"


async def test_traffic_stays_where_a_terminated_release_has_its_way_back(harness: Harness) -> None:
    await under_the_parachute_with_all_traffic(harness)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).terminate()
    before = len(harness.splits())
    harness.fleet.unfit.add("stable-0 v41")
    await harness.go_back("v41")
    result = await ended(harness)
    await assert_left_alone(harness, result)
    assert set(harness.splits()[before:]) == {"0/100"}


async def test_a_terminated_release_keeps_no_traffic_on_its_candidate(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).terminate()
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(2))
    before = len(harness.splits())
    await harness.go_back("v41")
    assert (await ended(harness)).outcome is Outcome.PROMOTED
    assert harness.splits()[before:] == ["100/0", "0/100", "100/0"]
