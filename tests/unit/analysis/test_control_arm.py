"""At 100 % the canary is compared with what stable answers of a small share, or with nothing."""

from datetime import timedelta

import pytest

from tests.unit.analysis.test_verdict import ERROR_RATIO, ERRORS, LATENCY_RATIO, arm, interval, stage
from weightshift.analysis.samples import ArmCounts, Interval
from weightshift.analysis.sizing import ObservedTraffic, slow_gates
from weightshift.analysis.verdict import StageJudge, StageState
from weightshift.contracts.control import Control, control_share, with_control
from weightshift.contracts.plan import Gate, Plan
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import GateVerdict, StageOutcome, StageVerdict

NOTHING = arm(0)


def judged(
    intervals: list[Interval], *gates: Gate, control: int = 5, before: ArmCounts | None = None
) -> StageVerdict:
    judge = StageJudge(stage(weight=100, gates=gates), control=control)
    state: StageState = judge.start({}, interval(ArmCounts(), before or arm(4_000, seed=99)))
    for one in intervals:
        state = judge.advance(state, one)
    return judge.verdict(state)


def compared(verdict: StageVerdict) -> GateVerdict:
    return verdict.gates[0].verdict


def equal(number: int) -> Interval:
    return interval(arm(8_000, 160, seed=number * 10), arm(400, 8, seed=number * 10 + 5))


def test_a_canary_equal_to_its_control_arm_passes() -> None:
    verdict = judged([equal(i) for i in range(60)], ERROR_RATIO, ERRORS)
    assert verdict.outcome is StageOutcome.HEALTHY
    assert compared(verdict) is GateVerdict.HEALTHY


def test_a_canary_that_fails_more_often_than_its_control_arm_is_stopped() -> None:
    bad = [interval(arm(8_000, 800, seed=i), arm(400, 8, seed=i + 50)) for i in range(12)]
    verdict = judged(bad, ERROR_RATIO, ERRORS)
    assert verdict.outcome is StageOutcome.BREACH
    assert {ERROR_RATIO.name, ERRORS.name} <= {
        gate.gate for gate in verdict.gates if gate.verdict is GateVerdict.BREACH
    }


def test_without_a_control_arm_a_gate_alone_holds_and_only_total_failure_rolls_back() -> None:
    bad = [interval(arm(8_000, 800, seed=i), ArmCounts()) for i in range(12)]
    verdict = judged(bad, ERROR_RATIO, ERRORS, control=0)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert compared(verdict) is GateVerdict.NOT_APPLICABLE
    assert "no evidence that stable is better" in verdict.gates[1].detail
    failing = judged([interval(arm(8_000, 8_000), ArmCounts())], ERROR_RATIO, ERRORS, control=0)
    assert failing.outcome is StageOutcome.BREACH


def test_stragglers_on_stable_are_no_control_arm() -> None:
    stragglers = [interval(arm(8_000, 160, seed=i), arm(400, 8, seed=i + 5)) for i in range(60)]
    assert compared(judged(stragglers, ERROR_RATIO, ERRORS, control=0)) is GateVerdict.NOT_APPLICABLE


def test_copies_that_do_not_arrive_hold_the_stage() -> None:
    verdict = judged([interval(arm(8_000, 160, seed=i), NOTHING) for i in range(60)], ERROR_RATIO, ERRORS)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert compared(verdict) is GateVerdict.INSUFFICIENT


def test_a_control_arm_that_is_not_scraped_holds_the_stage() -> None:
    silent = interval(arm(8_000, 160), ArmCounts())
    verdict = judged([*(equal(i) for i in range(60)), silent], ERROR_RATIO, ERRORS)
    assert compared(verdict) is GateVerdict.NO_DATA


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, GateVerdict.INSUFFICIENT), (1.6, GateVerdict.BREACH)])
def test_an_idle_arm_that_is_faster_than_stable_was_under_load_is_no_proof_of_harm(
    scale: float, verdict: GateVerdict
) -> None:
    """The copies are answered in half the time that stable needed while it had the traffic."""
    intervals = [interval(arm(4_000, 40, scale, seed=i), arm(200, 2, 0.5, seed=i + 50)) for i in range(12)]
    assert compared(judged(intervals, LATENCY_RATIO, ERRORS)) is verdict


@pytest.mark.parametrize(
    ("control", "split", "share"),
    [
        (Control.MIRROR, TrafficSplit.with_canary(100, mirrored=5, sticky=True), 5),
        (Control.HOLDBACK, TrafficSplit.with_canary(95, sticky=True), 5),
        (Control.NONE, TrafficSplit.with_canary(100, sticky=True), 0),
    ],
)
def test_the_split_of_each_control(control: Control, split: TrafficSplit, share: int) -> None:
    assert with_control(TrafficSplit.with_canary(100, sticky=True), control) == split
    assert control_share(100, split) == share
    half = TrafficSplit.with_canary(50)
    assert with_control(half, control) == half
    assert control_share(50, half) == 0


def test_a_control_arm_that_is_decided_too_late_is_told_at_the_start() -> None:
    traffic = ObservedTraffic(requests_per_second=60, error_fraction=0.01)
    plan = Plan.model_validate({"stages": [50, 100], "max_window": "10m"})
    assert ["stage 2" in problem for problem in slow_gates(plan, traffic)] == [True]
    without = plan.model_copy(update={"control": Control.NONE})
    assert slow_gates(without, traffic) == []
    patient = plan.model_copy(update={"max_window": timedelta(hours=1)})
    assert slow_gates(patient, traffic) == []
