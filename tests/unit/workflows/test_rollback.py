"""The state table, row by row."""

import pytest

from weightshift.contracts.commands import InstanceRef
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import OnPartial, Plan
from workflows.rollback import Position, canary_share, plan_rollback, way_back
from workflows.waves import granted_share, waves_of


@pytest.mark.parametrize(
    "position",
    [Position.UNTOUCHED, Position.FIRST_RELEASE, Position.RETURNING_FROM_CANARY, Position.TAKEN_BACK],
)
def test_there_is_nothing_to_do_where_nothing_was_changed_or_nothing_was_before(position: Position) -> None:
    plan = plan_rollback(position)
    assert (plan.cut_to, plan.restore_stable, plan.seal_canary) == (None, False, False)


@pytest.mark.parametrize("position", [Position.CANARY_PUBLISHED, Position.CANARY_SERVING])
def test_an_untouched_stable_gets_the_traffic_at_once(position: Position) -> None:
    plan = plan_rollback(position)
    assert (plan.cut_to, plan.restore_stable, plan.seal_canary) == (Cohort.STABLE, False, True)


def test_a_publish_whose_outcome_is_unknown_is_cut_and_overruled() -> None:
    plan = plan_rollback(Position.STABLE_PUBLISH_IN_FLIGHT)
    assert (plan.cut_to, plan.restore_stable, plan.seal_canary) == (Cohort.STABLE, True, True)


@pytest.mark.parametrize("position", [Position.STABLE_SWAPPING, Position.RETIRING])
def test_traffic_stays_until_stable_serves_the_healthy_artifact_again(position: Position) -> None:
    plan = plan_rollback(position)
    assert (plan.cut_to, plan.restore_stable, plan.seal_canary) == (None, True, True)


def test_under_the_parachute_the_canary_is_the_way_back() -> None:
    assert plan_rollback(Position.PARACHUTE_UP).cut_to is Cohort.CANARY


def test_every_position_has_a_plan() -> None:
    for position in Position:
        plan_rollback(position)


def test_the_way_back_is_told_as_it_is() -> None:
    assert way_back(Position.FIRST_RELEASE, None) == "none"
    assert way_back(Position.CANARY_SERVING, 4.0) == "instant"
    assert way_back(Position.STABLE_SWAPPING, 4.2) == "reload ~4 s"
    assert way_back(Position.RETIRING, None) == "reload"
    assert way_back(Position.TAKEN_BACK, 4.0) == "none"
    assert way_back(Position.RETURNING_FROM_CANARY, 4.0) == "none"


IN_PLACE = Plan.model_validate({"stages": [10, 40], "promotion": "in-place"})
SHED = IN_PLACE.model_copy(update={"on_partial": OnPartial.SHED})


@pytest.mark.parametrize(
    ("plan", "granted", "share"),
    [(IN_PLACE, 0.5, 20), (IN_PLACE, 1.0, 40), (IN_PLACE, 0.13, 5), (SHED, 1.0, 0)],
)
def test_in_waves_the_canary_keeps_what_the_healthy_part_cannot_carry(
    plan: Plan, granted: float, share: int
) -> None:
    assert canary_share(Position.STABLE_IN_WAVES, plan, granted=granted) == share


def test_a_small_parachute_takes_what_it_carried_before() -> None:
    assert canary_share(Position.SMALL_PARACHUTE_UP, IN_PLACE, granted=1.0) == 40
    assert plan_rollback(Position.SMALL_PARACHUTE_UP).cut_to is None


@pytest.mark.parametrize("position", set(Position) - {Position.STABLE_IN_WAVES, Position.SMALL_PARACHUTE_UP})
def test_elsewhere_nothing_is_shared_out(position: Position) -> None:
    assert canary_share(position, IN_PLACE, granted=0.5) is None


def test_waves_take_every_instance_once_in_order() -> None:
    pool = [InstanceRef(instance_id=f"stable-{number}", boot_id="1", capacity=2.0) for number in range(5)]
    waves = list(waves_of(pool, 2))
    assert [len(wave) for wave in waves] == [2, 2, 1]
    assert [one for wave in waves for one in wave] == pool
    assert granted_share(waves[0], pool) == 0.4
    assert granted_share([], []) == 1.0
