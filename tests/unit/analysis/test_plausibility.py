"""Samples that cannot be what they claim to be are an error, not a verdict."""

import pytest

from tests.unit.analysis.test_verdict import ERROR_RATIO, ERRORS, arm, interval, stage
from weightshift.analysis.plausibility import Plausibility
from weightshift.analysis.samples import Interval
from weightshift.analysis.verdict import StageJudge
from weightshift.contracts.verdict import GateVerdict, StageOutcome


def after(intervals: list[Interval], weight: int = 25) -> Plausibility:
    state = Plausibility()
    for one in intervals:
        state = state.after(one, weight)
    return state


def split(canary: int, stable: int) -> Interval:
    return interval(arm(canary), arm(stable))


def test_a_share_that_stays_off_is_a_problem_the_third_time() -> None:
    off = split(1_600, 2_400)
    assert after([off] * 2).problem(25) == ""
    assert after([off] * 3).problem(25) == "the canary got 40.0 % of the requests instead of 25 %"
    for between in (split(800, 2_400), split(80, 2_400)):
        assert after([off, off, between, off, off]).problem(25) == ""


def test_scrapes_that_fall_now_into_one_interval_and_now_into_the_next_are_no_problem() -> None:
    assert after([split(1_600, 2_400), split(80, 2_400)] * 5).problem(25) == ""


def test_few_requests_may_stray_by_chance() -> None:
    assert after([split(12, 20)] * 5).problem(25) == ""


def test_a_few_stragglers_on_stable_at_full_weight_are_no_problem() -> None:
    assert after([split(4_000, 200)] * 5, weight=100).problem(100) == ""


def test_a_proxy_that_still_sends_its_requests_to_stable_is_seen_at_a_hundred_percent_too() -> None:
    problem = after([split(3_000, 1_000)] * 3, weight=100).problem(100)
    assert "75.0 % of the requests instead of 100 %" in problem


def test_a_wrong_share_keeps_the_stage_from_passing() -> None:
    judge = StageJudge(stage(gates=(ERRORS,)))
    state = judge.start({}, split(4, 4_000))
    for _ in range(30):
        state = judge.advance(state, split(1_600, 2_400))
    verdict = judge.verdict(state)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert verdict.gates[0].verdict is GateVerdict.ERROR


@pytest.mark.parametrize(("errors", "outcome"), [(8, GateVerdict.ERROR), (12, GateVerdict.INSUFFICIENT)])
def test_one_series_read_twice_compares_nothing(errors: int, outcome: GateVerdict) -> None:
    judge = StageJudge(stage(weight=50, gates=(ERROR_RATIO, ERRORS)))
    state = judge.start({}, split(4, 4_000))
    for _ in range(5):
        state = judge.advance(state, interval(arm(800, 8), arm(800, errors)))
    compared, absolute, _ = judge.verdict(state).gates
    assert compared.verdict is outcome
    assert absolute.verdict is not GateVerdict.ERROR
