"""What the canary is compared with at 100 %, and who judges it until stable has its traffic back."""

from collections.abc import Sequence

import pytest

from tests.workflow.harness import FAST_PLAN, UNJUDGED_PLAN, Harness
from weightshift.contracts.commands import ObserveMode
from weightshift.contracts.control import Control
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.release import Outcome, RollbackRequest
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import RouteInvalid


@pytest.mark.parametrize(
    ("control", "last"),
    [
        (Control.MIRROR, [(100, 5), (100, 0)]),
        (Control.HOLDBACK, [(95, 0), (100, 0)]),
        (Control.NONE, [(100, 0)]),
    ],
)
async def test_something_is_left_to_compare_with_at_full_weight(
    harness: Harness, control: Control, last: list[tuple[int, int]]
) -> None:
    plan = FAST_PLAN.model_copy(update={"control": control})
    assert (await harness.release("v42", plan)).outcome is Outcome.PROMOTED
    splits = [(split.canary, split.mirrored) for _, split, _ in harness.mesh.writes[1:]]
    assert splits == [(5, 0), (25, 0), (50, 0), *last, (0, 0)]
    windows = [one for one in harness.observations.asked if one.mode is ObserveMode.WINDOW]
    assert [one.stage.weight for one in windows] == [5, 25, 50, 100]


async def test_a_stage_that_is_not_judged_needs_nothing_to_compare_with(harness: Harness) -> None:
    assert (await harness.release("v42", UNJUDGED_PLAN)).outcome is Outcome.PROMOTED
    assert not any(split.mirrored for _, split, _ in harness.mesh.writes)


@pytest.mark.parametrize(
    ("control", "told"),
    [
        (Control.MIRROR, "compared with 5 % mirrored to stable"),
        (Control.HOLDBACK, "but for 5 % that stay on stable"),
        (Control.NONE, "compared with nothing"),
    ],
)
async def test_the_story_says_what_the_canary_is_compared_with(
    harness: Harness, control: Control, told: str
) -> None:
    await harness.release("v42", FAST_PLAN.model_copy(update={"control": control}))
    steps = [step.text for step in (await harness.client.status(harness.service)).steps]
    assert any(text.startswith("shifting 100 % to canary") and told in text for text in steps)
    assert not any("compared" in text for text in steps if "shifting 5 %" in text)


async def test_stable_is_idle_before_it_is_published_anything(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42")

    async def is_published() -> bool:
        return await harness.serves(Cohort.STABLE, "v42")

    await harness.until(is_published)
    assert str((await harness.mesh.read(harness.service)).split) == "0/100"
    harness.fleet.stuck.clear()
    await harness.result()


async def test_a_rollback_at_full_weight_ends_the_mirror(harness: Harness) -> None:
    harness.observations.blocked.add(100)
    await harness.start("v42")
    await harness.until_judging(100)
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert harness.mesh.writes[-2][1].mirrored == 5
    assert harness.mesh.writes[-1][1] == TrafficSplit.all_to(Cohort.STABLE)


async def test_a_mesh_that_cannot_mirror_refuses_the_plan_and_says_how_to_do_without(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(service: Service, splits: Sequence[TrafficSplit]) -> None:
        if any(split.mirrored for split in splits):
            raise RouteInvalid("the route has a `mirror` of its own")

    monkeypatch.setattr(harness.mesh, "check", check)
    await harness.start("v42")
    with pytest.raises(RouteInvalid, match=r"cannot be mirrored: .*set `control` to holdback or none"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    assert await harness.serves(Cohort.CANARY, "v41")
    holding_back = FAST_PLAN.model_copy(update={"control": Control.HOLDBACK})
    assert (await harness.release("v42", holding_back)).outcome is Outcome.PROMOTED


async def test_the_canary_is_judged_until_stable_has_its_traffic_back(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    harness.observations.outcomes[100] = [StageOutcome.HEALTHY, StageOutcome.BREACH]
    result = await harness.release("v42")
    assert result.outcome is Outcome.ROLLED_BACK
    assert "scripted breach" in result.reason
    assert [one.mode for one in harness.observations.asked if one.stage.weight == 100] == ["window", "watch"]
    assert harness.splits()[-2:] == ["0/100", "100/0"], "the split stays until stable is restored"
    for cohort in Cohort:
        assert await harness.serves(cohort, "v41")


async def test_a_release_without_windows_is_not_judged_while_it_swaps_either(harness: Harness) -> None:
    assert (await harness.release("v42", UNJUDGED_PLAN)).outcome is Outcome.PROMOTED
    assert harness.observations.asked == []
