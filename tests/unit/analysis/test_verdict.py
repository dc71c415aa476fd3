"""The rule table of the verdict, on counts written by hand."""

import math
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from weightshift.analysis.latency_gate import LatencyRatio
from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval
from weightshift.analysis.verdict import StageJudge, StageState
from weightshift.contracts.plan import Gate, Metric, ResolvedStage
from weightshift.contracts.verdict import GateVerdict, StageOutcome

EDGES = tuple(0.01 * 1.1**i for i in range(40))
ERRORS = Gate(metric=Metric.ERROR_RATE, maximum=0.03)
ERROR_RATIO = Gate(metric=Metric.ERROR_RATE, ratio=1.1)
LATENCY_RATIO = Gate(metric=Metric.LATENCY, ratio=1.1)


def stage(weight: int = 25, gates: tuple[Gate, ...] = (ERRORS, ERROR_RATIO, LATENCY_RATIO)) -> ResolvedStage:
    minute = timedelta(minutes=10)
    return ResolvedStage(weight=weight, window=minute, max_window=minute, min_samples=100, gates=gates)


def instance(requests: int, errors: int = 0, scale: float = 1.0, seed: int = 0) -> InstanceCounts:
    source = random.Random(seed)  # noqa: S311
    latencies = [scale * 0.02 * math.exp(source.gauss(0, 0.5)) for _ in range(requests)]
    return InstanceCounts(requests, errors, tuple(sum(value > edge for value in latencies) for edge in EDGES))


def arm(
    requests: int, errors: int = 0, scale: float = 1.0, *, seed: int = 0, instances: int = 4
) -> ArmCounts:
    return ArmCounts(
        {
            str(i): instance(requests // instances, errors // instances, scale, seed + i)
            for i in range(instances)
        },
        fresh=True,
    )


def judge(
    intervals: list[Interval], *, weight: int = 25, gates: tuple[Gate, ...] | None = None
) -> tuple[StageJudge, StageState]:
    one = StageJudge(stage(weight, gates) if gates else stage(weight))
    state = one.start({}, interval(ArmCounts(), arm(4_000, seed=99)))
    for observed in intervals:
        state = one.advance(state, observed)
    return one, state


def outcome(intervals: list[Interval], **options: object) -> StageOutcome:
    one, state = judge(intervals, **options)  # type: ignore[arg-type]
    return one.verdict(state).outcome


def interval(canary: ArmCounts, stable: ArmCounts) -> Interval:
    return Interval(canary, stable, EDGES)


def healthy(number: int, canary: int = 800, stable: int = 2_400) -> Interval:
    return interval(arm(canary, 8, seed=number * 10), arm(stable, 24, seed=number * 10 + 5))


def test_a_canary_equal_to_stable_passes_with_evidence() -> None:
    assert outcome([healthy(i) for i in range(60)]) is StageOutcome.HEALTHY


def test_one_good_interval_is_not_evidence() -> None:
    assert outcome([healthy(0)]) is StageOutcome.INCONCLUSIVE


def test_what_is_insufficient_says_how_long_it_will_take() -> None:
    one, state = judge([healthy(i) for i in range(3)])
    waiting = next(g for g in one.verdict(state).gates if g.verdict is GateVerdict.INSUFFICIENT)
    assert "more intervals at this pace" in waiting.detail
    doubtful, state = judge([interval(arm(800, 24), arm(2_400, 24))])
    assert "none yet after 1 intervals" in doubtful.verdict(state).gates[1].detail


def test_errors_of_the_canary_alone_are_a_breach() -> None:
    bad = [interval(arm(800, 160, seed=i), arm(2_400, 24, seed=i + 50)) for i in range(12)]
    assert outcome(bad) is StageOutcome.BREACH


def test_a_slower_canary_is_a_breach() -> None:
    bad = [interval(arm(800, 8, 1.6, seed=i), arm(2_400, 24, seed=i + 50)) for i in range(12)]
    one, state = judge(bad)
    verdict = one.verdict(state)
    assert verdict.outcome is StageOutcome.BREACH
    assert {g.gate for g in verdict.gates if g.verdict is GateVerdict.BREACH} == {LATENCY_RATIO.name}


def test_total_failure_is_a_breach_in_the_first_interval() -> None:
    assert outcome([interval(arm(40, 40), arm(2_400, 24))]) is StageOutcome.BREACH


def test_trouble_of_both_arms_is_not_blamed_on_the_canary() -> None:
    both = [interval(arm(800, 400, seed=i), arm(2_400, 1_200, seed=i + 50)) for i in range(12)]
    one, state = judge(both)
    verdict = one.verdict(state)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    absolute = next(g for g in verdict.gates if g.gate == ERRORS.name)
    assert "no evidence that stable is better" in absolute.detail


def test_no_samples_is_no_data_and_never_passes() -> None:
    silent = interval(ArmCounts(), arm(2_400, 24))
    one, state = judge([healthy(i) for i in range(60)] + [silent])
    verdict = one.verdict(state)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert {g.verdict for g in verdict.gates[:-1]} == {GateVerdict.NO_DATA}


def test_judging_goes_on_when_samples_return() -> None:
    silent = interval(ArmCounts(), arm(2_400, 24))
    one, state = judge([healthy(0), silent] + [healthy(i) for i in range(1, 60)])
    assert one.verdict(state).outcome is StageOutcome.HEALTHY


def test_nothing_measured_at_all_never_passes() -> None:
    assert outcome([]) is StageOutcome.INCONCLUSIVE


def test_no_traffic_is_its_own_outcome() -> None:
    idle = interval(ArmCounts({"0": InstanceCounts(0, 0, (0,) * len(EDGES))}, fresh=True), arm(2_400, 24))
    one, state = judge([idle])
    assert "insufficient traffic" in one.verdict(state).reason


def test_fewer_samples_than_the_floor_never_pass() -> None:
    gates = (Gate(metric=Metric.ERROR_RATE, maximum=0.5),)
    one, state = judge([interval(arm(90), arm(2_400))], weight=100, gates=gates)
    verdict = one.verdict(state)
    assert verdict.gates[0].verdict is GateVerdict.HEALTHY
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert "of 100 samples" in verdict.reason


def test_at_full_weight_comparisons_do_not_apply() -> None:
    one, state = judge([interval(arm(4_000, 8, seed=i), ArmCounts()) for i in range(20)], weight=100)
    verdict = one.verdict(state)
    assert verdict.outcome is StageOutcome.HEALTHY
    assert [g.verdict for g in verdict.gates[1:3]] == [GateVerdict.NOT_APPLICABLE] * 2


def test_comparisons_alone_never_pass_at_full_weight() -> None:
    one, state = judge([interval(arm(4_000, 8), ArmCounts())] * 20, weight=100, gates=(ERROR_RATIO,))
    assert one.verdict(state).reason == "no gate could be evaluated"


def test_harm_is_carried_over_stages_and_health_is_not() -> None:
    bad = [interval(arm(800, 24, seed=i), arm(2_400, 24, seed=i + 50)) for i in range(8)]
    one, first = judge(bad)
    second = one.start(
        {name: e.harm for name, e in first.evidence.items()}, interval(ArmCounts(), first.calibration)
    )
    assert second.evidence[ERROR_RATIO.name].harm == first.evidence[ERROR_RATIO.name].harm
    assert second.evidence[ERROR_RATIO.name].log_health == 0.0


def test_latency_without_a_known_tail_is_an_error_not_a_pass() -> None:
    one = StageJudge(stage())
    state = one.start({}, interval(ArmCounts(), ArmCounts()))
    state = one.advance(state, healthy(0))
    verdict = one.verdict(state)
    assert next(g for g in verdict.gates if g.gate == LATENCY_RATIO.name).verdict is GateVerdict.ERROR


def test_how_instances_vary_is_taken_from_stables_history() -> None:
    past = [interval(ArmCounts(), arm(4_000, 40, seed=10 * i)) for i in range(30)]
    calibration = interval(ArmCounts(), arm(40_000, seed=99))
    # Read back for the gates alone, a history holds the middle edge and no other.
    middle = LatencyRatio(LATENCY_RATIO).middle_edge(calibration)
    assert middle is not None
    index = EDGES.index(middle)
    narrow = [
        Interval(
            one.canary,
            ArmCounts(
                {k: replace(c, slower=c.slower[index : index + 1]) for k, c in one.stable.instances.items()}
            ),
            (middle,),
        )
        for one in past
    ]
    for history in (past, narrow):
        evidence = StageJudge(stage()).start({}, calibration, history).evidence
        assert evidence[ERROR_RATIO.name].dispersion.history.single == 1.0
        assert 1.0 <= evidence[LATENCY_RATIO.name].dispersion.history.single < 2.0


@pytest.mark.parametrize("seed", range(5))
def test_equal_arms_do_not_breach(seed: int) -> None:
    source = random.Random(seed)  # noqa: S311
    intervals = [
        interval(
            arm(800, 4 * source.randint(0, 5), seed=seed * 1_000 + i),
            arm(2_400, 4 * source.randint(3, 12), seed=seed * 2_000 + i),
        )
        for i in range(60)
    ]
    assert outcome(intervals) is not StageOutcome.BREACH
