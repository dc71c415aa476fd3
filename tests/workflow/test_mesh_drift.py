"""Somebody else edits the split while a release runs, or between two."""

import asyncio

import pytest

from tests.workflow.harness import FAST_PLAN, UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.plan import Sticky
from weightshift.contracts.release import Outcome, RollbackRequest
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import Conflict, MeshDrift, RouteInvalid


async def test_a_foreign_edit_stops_the_release_and_is_overridden_by_its_rollback(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    harness.mesh.edit(harness.service, TrafficSplit.with_canary(90))
    harness.observations.blocked.clear()
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK
    assert "MeshDrift" in result.reason
    assert "10/90" in result.reason
    assert harness.splits()[-2:] == ["95/5", "100/0"]
    assert await harness.serves(Cohort.CANARY, "v41")


async def test_a_foreign_edit_between_releases_is_refused_before_anything_is_published(
    harness: Harness,
) -> None:
    harness.mesh.edit(harness.service, TrafficSplit.with_canary(50))
    await harness.start("v42")
    with pytest.raises(MeshDrift, match="50/50"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    assert await harness.serves(Cohort.CANARY, "v41")
    assert not any(release.outcome is None for release in await harness.registry.releases(harness.service))


async def test_nothing_is_published_under_traffic_that_was_left_on_the_canary(harness: Harness) -> None:
    """As after `--break-glass --cohort canary`: a candidate would get it all, and no stage would judge it."""
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(1))
    await harness.start("v42")
    with pytest.raises(Conflict, match=r"canary \(v41\) carries 100 % .* stable \(v41\)"):
        async with asyncio.timeout(20):
            await harness.client.wait(harness.service, on_status=lambda status: None)
    assert await harness.serves(Cohort.CANARY, "v41")
    assert harness.splits()[-1] == "0/100"


async def test_going_back_may_start_from_the_canary(harness: Harness) -> None:
    await harness.release("v42", UNJUDGED_PLAN)
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(2))
    await harness.go_back("v41", UNJUDGED_PLAN)
    assert (await harness.result()).outcome is Outcome.PROMOTED
    assert harness.splits()[-1] == "100/0"


async def test_nothing_is_published_under_traffic_that_was_moved_to_the_parachute(harness: Harness) -> None:
    """As after `--break-glass --cohort canary`: v42 is promoted and bad, and v41 serves on the canary."""
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(2))
    result = await harness.result()
    assert await harness.serves(Cohort.CANARY, "v41")
    assert (result.outcome, str(result.split)) == (Outcome.PROMOTED, "0/100")
    assert "v42 is on stable, but the canary carries 100 % of the traffic" in result.reason
    status = await harness.client.status(harness.service)
    assert (str(status.split), status.reason) == ("0/100", result.reason)
    assert any("CanaryCarriesTraffic" in step.text for step in status.steps)
    assert (await harness.registry.releases(harness.service))[0].reason == result.reason
    await harness.go_back("v41", UNJUDGED_PLAN)
    assert (await harness.result()).outcome is Outcome.PROMOTED
    assert harness.splits()[-1] == "100/0"
    assert await harness.serves(Cohort.STABLE, "v41")


async def test_a_rollback_that_leaves_traffic_on_the_canary_says_so(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(2))
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    result = await harness.result()
    assert "traffic is left at 0/100" in result.reason
    told = [step.text for step in (await harness.client.status(harness.service)).steps]
    assert any("older than the accepted 2.break-glass" in text for text in told)


async def test_a_missing_route_is_refused_before_anything_is_published(harness: Harness) -> None:
    harness.mesh.failure = RouteInvalid("no route named weightshift; add one")
    await harness.start("v42")
    with pytest.raises(RouteInvalid, match="add one"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    assert await harness.serves(Cohort.CANARY, "v41")


async def test_a_route_that_vanishes_keeps_a_rollback_trying(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.mesh.failure = RouteInvalid()
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    before = harness.mesh.attempts

    async def retried() -> bool:
        return harness.mesh.attempts >= before + 3

    await harness.until(retried)
    harness.mesh.failure = None
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-1] == "100/0"


async def test_a_rollback_goes_on_when_the_data_plane_does_not_follow(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.mesh.follows = False
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-1] == "100/0"
    assert await harness.serves(Cohort.CANARY, "v41"), "sealed all the same"
    rows = await harness.registry.audit(harness.service, release_id=result.release_id)
    assert any("not shown yet by every proxy" in row.summary for row in rows)


async def test_sticky_users_are_asked_of_the_mesh_at_every_stage(harness: Harness) -> None:
    sticky = FAST_PLAN.model_copy(update={"sticky": Sticky.USER})
    assert (await harness.release("v42", sticky)).outcome is Outcome.PROMOTED
    splits = [split for _, split, _ in harness.mesh.writes[1:]]
    assert [split.sticky for split in splits] == [True, True, True, True, True, False]
