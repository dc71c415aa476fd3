"""A way back that has to have stable serve the healthy artifact again first."""

import asyncio
import itertools
from datetime import datetime

import pytest

from tests.workflow.harness import LOST_AFTER, UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.contracts.target import Publication, Target
from weightshift.errors import (
    MeshUnreachable,
    OperationConflict,
    RevisionReused,
    RollbackUnderWay,
    RouteInvalid,
    StaleFence,
    WeightshiftError,
)
from weightshift.way_back import way_back_now


async def test_a_stable_that_cannot_be_restored_is_tried_again_less_and_less_often(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.PROMOTING))
    harness.fleet.unfit.add("stable-0 v41")
    await harness.client.signal_rollback(harness.service, RollbackRequest())

    async def failures() -> list[datetime]:
        steps = (await harness.client.status(harness.service)).steps
        return [step.at for step in steps if "stable not restored yet" in step.text]

    async def failed_often() -> bool:
        return len(await failures()) >= 5

    await harness.until(failed_often)
    pauses = [(later - before).total_seconds() for before, later in itertools.pairwise(await failures())]
    assert [round(pause, -1) for pause in pauses[:4]] == [10, 20, 40, 80]
    harness.fleet.unfit.clear()
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK


class RefusedSeals:
    """A registry that refuses to seal a cohort with one error, until it is told otherwise."""

    def __init__(self, harness: Harness, error: WeightshiftError) -> None:
        self.refusing = True
        self.attempts: list[Publication] = []
        self._error = error
        self._publish = harness.registry.publish

    async def publish(self, publication: Publication) -> Target:
        if publication.reason == "rollback" and self.refusing:
            self.attempts.append(publication)
            raise self._error
        return await self._publish(publication)


async def refused_in_mid_promotion(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, error: WeightshiftError
) -> RefusedSeals:
    """Ask for a rollback while stable swaps, with a registry that seals nothing."""
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", UNJUDGED_PLAN)

    async def stable_is_swapping() -> bool:
        return (await harness.client.status(harness.service)).way_back.startswith("reload")

    await harness.until_in_real_time(stable_is_swapping)
    seals = RefusedSeals(harness, error)
    monkeypatch.setattr(harness.registry, "publish", seals.publish)
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    return seals


@pytest.mark.parametrize(
    "error", [OperationConflict(), RevisionReused()], ids=lambda error: type(error).__name__
)
async def test_traffic_waits_for_a_seal_that_the_registry_refuses_for_now(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, error: WeightshiftError
) -> None:
    seals = await refused_in_mid_promotion(harness, monkeypatch, error)

    async def refused_often() -> bool:
        return len(seals.attempts) >= 3

    await harness.until(refused_often)
    assert harness.splits()[-1] == "0/100", "stable is not restored"
    assert len({one.operation_id for one in seals.attempts}) == len(seals.attempts)
    steps = (await harness.client.status(harness.service)).steps
    assert any(f"stable not sealed yet: {type(error).__name__}" in step.text for step in steps)
    seals.refusing = False
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-1] == "100/0"
    assert await harness.serves(Cohort.STABLE, "v41")


async def test_traffic_goes_to_no_stable_that_a_newer_command_has(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seals = await refused_in_mid_promotion(harness, monkeypatch, StaleFence())
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "0/100")
    assert "stable is left to a newer command and traffic at 0/100" in result.reason
    assert [one.cohort for one in seals.attempts] == [Cohort.STABLE, Cohort.CANARY]


async def under_the_parachute(harness: Harness) -> None:
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()


async def cost_of_going_back(harness: Harness) -> str:
    status = await harness.client.status(harness.service)
    assert status.parachute is not None
    states = await harness.registry.instances(harness.service, lost_after=LOST_AFTER)
    return way_back_now(status.parachute, states)


async def test_traffic_never_jumps_to_a_parachute_of_which_a_part_is_missing(harness: Harness) -> None:
    await under_the_parachute(harness)
    assert await cost_of_going_back(harness) == "instant"
    before = len(harness.splits())
    harness.fleet.unfit.add("canary-0 v41")
    await harness.fleet.follow()
    assert await cost_of_going_back(harness) == "reload ~1 s: canary-0 serves revision none"
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="late"))
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[before:] == ["100/0"], "one instance would have got the traffic of two"
    assert await harness.serves(Cohort.STABLE, "v41")
    steps = (await harness.client.status(harness.service)).steps
    assert any("not whole, so stable is restored: canary-0 serves" in step.text for step in steps)


async def test_a_parachute_that_nobody_can_speak_for_is_trusted(harness: Harness) -> None:
    await under_the_parachute(harness)
    harness.registry.available = False
    async with asyncio.timeout(20):
        answer = await harness.client.rollback(harness.service, RollbackRequest(reason="late"))
    assert str(answer.split) == "0/100"
    harness.registry.available = True
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[-2:] == ["0/100", "100/0"]


@pytest.mark.parametrize(
    "failure",
    [RouteInvalid("0 backends are canary, not one"), MeshUnreachable()],
    ids=lambda one: type(one).__name__,
)
async def test_without_a_way_to_the_parachute_stable_is_restored(
    harness: Harness, failure: WeightshiftError
) -> None:
    await under_the_parachute(harness)
    before = len(harness.splits())
    harness.mesh.failure = failure
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="late"))

    async def restored() -> bool:
        steps = (await harness.client.status(harness.service)).steps
        return any("stable serves v41 again" in step.text for step in steps)

    await harness.until(restored)
    assert await harness.serves(Cohort.STABLE, "v41")
    steps = [step.text for step in (await harness.client.status(harness.service)).steps]
    assert any("cannot jump to the parachute, so stable is restored" in text for text in steps)
    harness.mesh.failure = None
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[before:] == ["100/0"]


async def test_a_jump_that_a_proxy_does_not_show_is_one(harness: Harness) -> None:
    await under_the_parachute(harness)
    before = len(harness.splits())
    harness.mesh.follows = False
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="late"))
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.splits()[before:] == ["0/100", "100/0"]
    steps = [step.text for step in (await harness.client.status(harness.service)).steps]
    assert "accepted, but not shown yet by every proxy: stable/canary 0/100" in steps
    assert not any("cannot jump" in text for text in steps)


async def test_a_rollback_that_takes_its_time_is_not_called_unanswered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weightshift.client._ANSWER_SECONDS", 0.5)
    harness.fleet.stuck.update(("stable-0 v42", "stable-0 v41"))
    await harness.start("v42", UNJUDGED_PLAN)

    async def stable_is_swapping() -> bool:
        return (await harness.client.status(harness.service)).way_back.startswith("reload")

    await harness.until_in_real_time(stable_is_swapping)
    with pytest.raises(RollbackUnderWay, match="under way and traffic is 0/100; follow it"):
        await harness.client.rollback(harness.service, RollbackRequest())
    harness.fleet.stuck.clear()
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
