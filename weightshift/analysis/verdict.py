"""The verdict on a stage: every gate's evidence, and the rule that combines them.

| Gates | Stage |
|---|---|
| any breach | breach |
| every declared gate healthy or not applicable, at least one healthy, and `min_samples` reached | healthy |
| anything else: insufficient, no data, an error | inconclusive |
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weightshift.analysis.evidence import Evidence, GateRule
from weightshift.analysis.gates import Absolute, ErrorRatio, Hard, LatencyRatio
from weightshift.analysis.latency_edges import LatencyEdges, choose_edges
from weightshift.analysis.samples import ArmCounts, Interval
from weightshift.analysis.sequential import Wealth
from weightshift.contracts.plan import Gate, Metric, ResolvedStage
from weightshift.contracts.verdict import GateResult, GateVerdict, StageOutcome, StageVerdict

ALPHA = 0.005
"""Bound on false rollbacks of a whole release; the other half of 1 % is kept for model error."""


@dataclass(frozen=True)
class StageState:
    """Everything gathered since the stage's start; `calibration` is what stable did until now."""

    evidence: Mapping[str, Evidence]
    calibration: ArmCounts
    intervals: int = 0
    silent_intervals: int = 0
    canary_requests: int = 0
    stable_requests: int = 0


class StageJudge:
    """Judges one stage. Holds the rules only; state goes in and comes out."""

    def __init__(self, stage: ResolvedStage) -> None:
        self._stage = stage
        self._declared: dict[str, tuple[Gate, GateRule]] = {
            gate.name: (gate, _rule(gate, stage.weight)) for gate in stage.gates
        }
        self._hard = Hard()

    @property
    def threshold(self) -> float:
        """Return ln of the wealth at which a gate is breached: alpha shared by all gates."""
        return math.log((len(self._declared) + 1) / ALPHA)

    def start(self, wealth: Mapping[str, Wealth], calibration: ArmCounts) -> StageState:
        """Begin the stage with the wealth the release has gathered so far."""
        evidence = {name: rule.start(wealth.get(name)) for name, (_, rule) in self._declared.items()}
        evidence[self._hard.name] = self._hard.start(wealth.get(self._hard.name))
        return StageState(evidence=evidence, calibration=calibration)

    def advance(self, state: StageState, interval: Interval) -> StageState:
        """Add one interval; one in which an arm was not scraped adds nothing but the fact."""
        if not interval.canary.fresh or (self._stage.weight < 100 and not interval.stable.fresh):
            return replace(state, silent_intervals=state.silent_intervals + 1)
        evidence = dict(state.evidence)
        for name, (gate, rule) in self._declared.items():
            edges = self._edges(gate, state, interval)
            evidence[name] = rule.advance(evidence[name], interval, edges)
        evidence[self._hard.name] = self._hard.advance(evidence[self._hard.name], interval, None)
        return StageState(
            evidence=evidence,
            calibration=state.calibration.plus(interval.stable),
            intervals=state.intervals + 1,
            canary_requests=state.canary_requests + interval.canary.requests,
            stable_requests=state.stable_requests + interval.stable.requests,
        )

    def verdict(self, state: StageState) -> StageVerdict:
        """Combine the gates by the rule table of this module."""
        results = tuple(self._judge(name, rule, state) for name, (_, rule) in self._declared.items())
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

    def _judge(self, name: str, rule: GateRule, state: StageState) -> GateResult:
        result = rule.judge(state.evidence[name], self.threshold)
        if result.verdict is GateVerdict.BREACH:
            return result
        if state.silent_intervals or state.intervals == 0:
            return result.model_copy(
                update={"verdict": GateVerdict.NO_DATA, "detail": "no fresh samples of this revision"}
            )
        if self._stage.weight == 100 and not self._declared[name][0].is_absolute:
            return result.model_copy(
                update={"verdict": GateVerdict.NOT_APPLICABLE, "detail": "stable has no traffic"}
            )
        return result

    def _edges(self, gate: Gate, state: StageState, interval: Interval) -> LatencyEdges | None:
        if gate.metric is not Metric.LATENCY or gate.ratio is None:
            return None
        return choose_edges(state.calibration, interval.edges, quantile=gate.quantile, ratio=gate.ratio)


def _rule(gate: Gate, weight: int) -> GateRule:
    if gate.is_absolute:
        return Absolute(gate)
    return ErrorRatio(gate, weight) if gate.metric is Metric.ERROR_RATE else LatencyRatio(gate, weight)


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
