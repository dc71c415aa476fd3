"""Gates beyond errors and latency: rejections, scores, device memory, business counters."""

from dataclasses import replace

import pytest

from tests.unit.analysis.test_verdict import ERRORS, stage
from weightshift.analysis.drift_gate import decile_edges
from weightshift.analysis.samples import ArmCounts, BadCounts, InstanceCounts, Interval
from weightshift.analysis.verdict import StageJudge
from weightshift.contracts.plan import Gate, Metric
from weightshift.contracts.verdict import GateResult, GateVerdict, StageOutcome, StageVerdict

SCORE_EDGES = tuple(step / 20 for step in range(1, 20))
DRIFT = Gate(metric=Metric.SCORE_DRIFT, maximum=0.05)
REJECTS = Gate(metric=Metric.REJECT_RATE, ratio=1.5)
MEMORY = Gate(metric=Metric.DEVICE_MEMORY, maximum=0.9)
ABANDONED = Gate(
    metric=Metric.BUSINESS,
    label="abandoned",
    ratio=1.2,
    bad='abandoned_total{revision="$revision"}',
    total='carts_total{revision="$revision"}',
)


def scored(requests: int, shift: float = 0.0) -> ArmCounts:
    """Uniform scores, moved upwards by a fraction of the whole range."""
    above = tuple(round(requests * min(1.0, max(0.0, 1 - edge + shift))) for edge in SCORE_EDGES)
    one = InstanceCounts(requests, 0, (), scored=requests, scores_above=above)
    return ArmCounts({str(i): one for i in range(3)}, fresh=True)


def counted(requests: int, **counts: object) -> ArmCounts:
    one = InstanceCounts(requests, 0, (), **counts)  # type: ignore[arg-type]
    return ArmCounts({str(i): one for i in range(3)}, fresh=True)


def judged(gate: Gate, intervals: list[tuple[ArmCounts, ArmCounts]]) -> GateResult:
    judge = StageJudge(stage(gates=(gate, ERRORS)))
    before = Interval(ArmCounts(), intervals[0][1], (), SCORE_EDGES)
    state = judge.start({}, before)
    for canary, stable in intervals:
        state = judge.advance(state, Interval(canary, stable, (), SCORE_EDGES))
    return next(one for one in judge.verdict(state).gates if one.gate == gate.name)


def test_deciles_are_the_nearest_edges() -> None:
    assert decile_edges(scored(1_000), SCORE_EDGES) == (1, 3, 5, 7, 9, 11, 13, 15, 17)
    assert decile_edges(scored(50), SCORE_EDGES) is None


@pytest.mark.parametrize(
    ("shift", "verdict"),
    [
        (0.0, GateVerdict.HEALTHY),
        (0.1, GateVerdict.BREACH),
        (-0.1, GateVerdict.BREACH),
        (0.05, GateVerdict.INSUFFICIENT),
    ],
)
def test_scores_may_move_by_the_margin_in_either_direction(shift: float, verdict: GateVerdict) -> None:
    # One request more on stable, or both arms would look like one series.
    assert judged(DRIFT, [(scored(400, shift), scored(1_201))] * 60).verdict is verdict


def test_a_model_that_exports_no_scores_is_no_data() -> None:
    assert judged(DRIFT, [(counted(400), counted(1_200))] * 5).verdict is GateVerdict.NO_DATA


def test_refused_requests_count_against_the_canary() -> None:
    bad = [(counted(400, rejected=40), counted(1_200, rejected=6))] * 20
    assert judged(REJECTS, bad).verdict is GateVerdict.BREACH
    good = [(counted(400, rejected=2), counted(1_200, rejected=6))] * 60
    assert judged(REJECTS, good).verdict is GateVerdict.HEALTHY


def test_memory_over_the_mark_is_a_breach_the_second_time() -> None:
    low, high = (counted(400, memory=0.5), counted(1_200)), (counted(400, memory=0.95), counted(1_200))
    assert judged(MEMORY, [low]).verdict is GateVerdict.HEALTHY
    assert judged(MEMORY, [low, high]).verdict is GateVerdict.INSUFFICIENT
    assert judged(MEMORY, [high, low, high]).verdict is GateVerdict.INSUFFICIENT
    assert judged(MEMORY, [low, high, high]).verdict is GateVerdict.BREACH


def test_an_instance_without_a_memory_sample_is_no_data() -> None:
    known = counted(400, memory=0.5)
    unknown = ArmCounts({**known.instances, "9": InstanceCounts(400, 0, ())}, fresh=True)
    assert judged(MEMORY, [(unknown, counted(1_200))]).verdict is GateVerdict.NO_DATA


def business(requests: int, total: int, bad: int) -> ArmCounts:
    arm = counted(requests)
    return ArmCounts(
        arm.instances, fresh=True, business={ABANDONED.name: BadCounts((total,) * 3, (bad,) * 3)}
    )


def test_a_business_counter_is_compared_like_errors() -> None:
    worse = [(business(400, 100, 20), business(1_200, 300, 6))] * 20
    assert judged(ABANDONED, worse).verdict is GateVerdict.BREACH
    equal = [(business(400, 100, 2), business(1_200, 300, 6))] * 60
    assert judged(ABANDONED, equal).verdict is GateVerdict.HEALTHY


def test_a_business_counter_without_the_revision_is_no_data() -> None:
    result = judged(ABANDONED, [(counted(400), business(1_200, 300, 6))] * 60)
    assert (result.verdict, result.detail) == (
        GateVerdict.NO_DATA,
        "no series carries the release's revision",
    )


def outcome_of(canary: ArmCounts, stable: ArmCounts) -> StageVerdict:
    judge = StageJudge(stage(gates=(ERRORS,)))
    state = judge.start({}, Interval(ArmCounts(), stable, (), SCORE_EDGES))
    for _ in range(3):
        state = judge.advance(state, Interval(canary, stable, (), SCORE_EDGES))
    return judge.verdict(state)


def test_a_canary_whose_requests_are_lost_on_the_way_has_failed() -> None:
    reached_by_nothing = counted(0)
    assert outcome_of(reached_by_nothing, counted(1_000)).outcome is StageOutcome.INCONCLUSIVE
    lost = replace(reached_by_nothing, unseen_errors=50)
    verdict = outcome_of(lost, counted(1_000))
    assert (verdict.outcome, verdict.reason) == (StageOutcome.BREACH, "gate hard breached")


def test_a_mesh_that_loses_the_requests_of_both_arms_says_nothing_of_the_canary() -> None:
    lost = replace(counted(100), unseen_errors=100)
    assert outcome_of(lost, lost).outcome is not StageOutcome.BREACH
