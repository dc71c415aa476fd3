"""The state table, row by row."""

import pytest

from weightshift.contracts.identity import Cohort
from workflows.rollback import Position, plan_rollback, way_back


@pytest.mark.parametrize("position", [Position.UNTOUCHED, Position.FIRST_RELEASE])
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
