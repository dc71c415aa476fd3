"""The verdict on a stage: every gate's evidence, and the rule that combines them.

| Gates | Stage |
|---|---|
| any breach | breach |
| every declared gate healthy or not applicable, at least one healthy, and `min_samples` reached | healthy |
| anything else: insufficient, no data, an error | inconclusive |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weightshift.analysis.evidence import Evidence, GateRule
from weightshift.analysis.gates import Hard
from weightshift.analysis.latency_edges import MINIMUM_REQUESTS
from weightshift.analysis.plausibility import Plausibility
from weightshift.analysis.rules import rule_of
from weightshift.analysis.samples import ArmCounts, Interval
from weightshift.analysis.sequential import Wealth
from weightshift.contracts.plan import Gate, ResolvedStage
from weightshift.contracts.verdict import GateResult, GateVerdict, StageOutcome, StageVerdict

ALPHA = 0.005
"""Bound on false rollbacks of a whole release; the other half of 1 % is kept for model error."""


@dataclass(frozen=True)
class StageState:
    """Everything gathered since the stage's start; `calibration` is what stable did until now.

    `silent_intervals` counts the latest intervals, without a gap, in which an arm was not scraped.
    """

    evidence: Mapping[str, Evidence]
    calibration: ArmCounts
    plausibility: Plausibility = field(default_factory=Plausibility)
    intervals: int = 0
    silent_intervals: int = 0
    canary_requests: int = 0
    stable_requests: int = 0


class StageJudge:
    """Judges one stage. Holds the rules only; state goes in and comes out.

    `control` is the percentage of the requests that stable answers, or is sent copies of, in a stage of
    100 %: what the canary is compared with there. 0 compares nothing at 100 %.
    """

    def __init__(self, stage: ResolvedStage, *, control: int = 0) -> None:
        self._stage = stage
        self._control = control
        self._has_control = stage.weight < 100 or control > 0
        self._declared: dict[str, tuple[Gate, GateRule]] = {
            gate.name: (gate, rule_of(gate, stage.weight, control=control)) for gate in stage.gates
        }
        self._hard = Hard()

    @property
    def threshold(self) -> float:
        """Return ln of the wealth at which a gate is breached: alpha shared by all gates."""
        return math.log((len(self._declared) + 1) / ALPHA)

    def start(
        self, wealth: Mapping[str, Wealth], calibration: Interval, history: Sequence[Interval] = ()
    ) -> StageState:
        """Begin the stage with the wealth the release has gathered so far, and what stable did before."""
        rules = [*(rule for _, rule in self._declared.values()), self._hard]
        evidence = {rule.name: rule.start(wealth.get(rule.name), calibration, history) for rule in rules}
        return StageState(evidence=evidence, calibration=calibration.stable)

    def advance(self, state: StageState, interval: Interval) -> StageState:
        """Add one interval; one in which an arm was not scraped adds nothing but the fact."""
        if not interval.canary.fresh or (self._has_control and not interval.stable.fresh):
            return replace(state, silent_intervals=state.silent_intervals + 1)
        rules = [*(rule for _, rule in self._declared.values()), self._hard]
        return StageState(
            evidence={
                rule.name: rule.advance(state.evidence[rule.name], interval, state.calibration)
                for rule in rules
            },
            calibration=self._calibrated(state.calibration, interval),
            plausibility=state.plausibility.after(interval, self._stage.weight),
            intervals=state.intervals + 1,
            canary_requests=state.canary_requests + interval.canary.requests,
            stable_requests=state.stable_requests + interval.stable.requests,
        )

    def _calibrated(self, calibration: ArmCounts, interval: Interval) -> ArmCounts:
        """Add what stable did; what it does nearly idle shows no latencies under load, and is left out."""
        if self._control and calibration.requests >= MINIMUM_REQUESTS:
            return calibration
        return calibration.plus(interval.stable)

    def verdict(self, state: StageState) -> StageVerdict:
        """Combine the gates by the rule table of this module."""
        results = tuple(self._judge(gate, rule, state) for gate, rule in self._declared.values())
        hard = self._hard.judge(state.evidence[self._hard.name], self.threshold)
        outcome, reason = _combine(results, hard, state, self._stage.min_samples)
        return StageVerdict(
            outcome=outcome,
            reason=reason,
            gates=(*results, hard),
            intervals=state.intervals,
            canary_requests=state.canary_requests,
            stable_requests=state.stable_requests,
        )

    def _judge(self, gate: Gate, rule: GateRule, state: StageState) -> GateResult:
        """Judge a gate by its evidence, unless the samples themselves forbid a conclusion.

        A comparison on series that look like one is not even a breach: it says nothing of the canary.
        """
        judged = rule.judge(state.evidence[gate.name], self.threshold)
        if not gate.is_absolute and not self._has_control:
            return _instead(judged, GateVerdict.NOT_APPLICABLE, "stable has no traffic")
        if not gate.is_absolute and (problem := state.plausibility.problem_of_comparisons()):
            return _instead(judged, GateVerdict.ERROR, problem)
        if judged.verdict is GateVerdict.BREACH:
            return judged
        if state.silent_intervals or state.intervals == 0:
            return _instead(judged, GateVerdict.NO_DATA, "no fresh samples of this revision")
        if problem := state.plausibility.problem(self._stage.weight):
            return _instead(judged, GateVerdict.ERROR, problem)
        return judged


def _instead(judged: GateResult, verdict: GateVerdict, detail: str) -> GateResult:
    return judged.model_copy(update={"verdict": verdict, "detail": detail})


def _combine(
    results: tuple[GateResult, ...], hard: GateResult, state: StageState, min_samples: int
) -> tuple[StageOutcome, str]:
    breached = [result for result in (hard, *results) if result.verdict is GateVerdict.BREACH]
    if breached:
        return StageOutcome.BREACH, f"gate {breached[0].gate} breached"
    if state.intervals and state.canary_requests == 0:
        return StageOutcome.INCONCLUSIVE, "insufficient traffic: the canary got no request"
    settled = {GateVerdict.HEALTHY, GateVerdict.NOT_APPLICABLE}
    open_gates = [result for result in results if result.verdict not in settled]
    if open_gates:
        first = open_gates[0]
        return StageOutcome.INCONCLUSIVE, f"gate {first.gate}: {first.verdict} {first.detail}".strip()
    if not any(result.verdict is GateVerdict.HEALTHY for result in results):
        return StageOutcome.INCONCLUSIVE, "no gate could be evaluated"
    if state.canary_requests < min_samples:
        return StageOutcome.INCONCLUSIVE, f"{state.canary_requests} of {min_samples} samples"
    return StageOutcome.HEALTHY, "every gate is healthy"
