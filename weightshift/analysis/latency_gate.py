"""The gate that compares the tails of both arms' latencies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weightshift.analysis.bad_events import history_of
from weightshift.analysis.dispersion import Dispersion, evidence_cap
from weightshift.analysis.evidence import (
    HARM_RATIOS,
    Evidence,
    add_health,
    evidence_by_ratio,
    fresh_health,
    result,
)
from weightshift.analysis.latency_edges import LatencyEdges, choose_edges
from weightshift.analysis.samples import ArmCounts, Interval
from weightshift.analysis.sequential import Wealth, mean_of_evidence
from weightshift.contracts.plan import Gate
from weightshift.contracts.verdict import GateResult

LATENCY_HEALTH_RATIOS = (0.2, 0.35, 0.5, 0.7, 0.85)
LATENCY_NULL_RATIO = 1.1
LATENCY_EFFECT = 1.0


@dataclass(frozen=True)
class LatencyRatio:
    """The canary's upper quantile may not exceed stable's by more than the factor `ratio`.

    Compares tails beyond latencies taken from stable's earlier requests; see `LatencyEdges`. With a
    `control` share, in percent, stable is nearly idle and fast: then a breach also needs a canary that is
    slower than stable was under load.
    """

    gate: Gate
    control: int = 0

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage; how stable's instances differ is measured at the middle edge."""
        middle = self.middle_edge(calibration)
        past = history_of(
            [one.stable.slower_than(one.edges.index(middle)) for one in history if middle in one.edges]
        )
        return Evidence(
            harm or Wealth.fresh(len(HARM_RATIOS)),
            health=fresh_health(1, len(LATENCY_HEALTH_RATIOS)),
            dispersion=Dispersion(history=past),
        )

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Add one interval; without edges it says nothing."""
        edges = self._edges(calibration, interval.edges)
        if edges is None:
            return replace(evidence, problem="stable's earlier requests show no tail to compare with")
        middle_canary = interval.canary.slower_than(edges.middle)
        middle_stable = interval.stable.slower_than(edges.middle)
        relaxed_canary = interval.canary.slower_than(edges.middle_times_ratio)
        dispersion = evidence.dispersion.value(middle_canary, middle_stable)
        return replace(
            evidence,
            harm=evidence.harm.after(
                self._harm(interval, edges, dispersion),
                interval=evidence.intervals,
                cap=evidence_cap(middle_canary, middle_stable),
            ),
            health=add_health(evidence.health, [self._health(interval, edges, dispersion)]),
            effect=evidence.effect.after(relaxed_canary, middle_stable),
            effect_under_load=evidence.effect_under_load.after(
                relaxed_canary, calibration.slower_than(edges.middle)
            ),
            dispersion=evidence.dispersion.after(middle_canary, middle_stable),
            intervals=evidence.intervals + 1,
            problem="",
        )

    def middle_edge(self, calibration: Interval) -> float | None:
        """Return the latency in seconds beyond which about `1 - quantile` of stable's requests lay."""
        edges = self._edges(calibration.stable, calibration.edges)
        return None if edges is None else calibration.edges[edges.middle]

    def _edges(self, calibration: ArmCounts, edges: tuple[float, ...]) -> LatencyEdges | None:
        return choose_edges(calibration, edges, quantile=self.gate.quantile, ratio=self.gate.ratio or 1.0)

    def _harm(self, interval: Interval, edges: LatencyEdges, dispersion: float) -> list[float]:
        by_edge = [
            evidence_by_ratio(
                interval.canary.slower_than(edge),
                interval.stable.slower_than(edge),
                null=LATENCY_NULL_RATIO,
                margin=self.gate.margin,
                factors=HARM_RATIOS,
                dispersion=dispersion,
            )
            for edge in edges.harm
        ]
        return [mean_of_evidence(values) for values in zip(*by_edge, strict=True)]

    def _health(self, interval: Interval, edges: LatencyEdges, dispersion: float) -> list[float]:
        by_edge = [
            evidence_by_ratio(
                interval.canary.slower_than(relaxed),
                interval.stable.slower_than(edge),
                null=1.0,
                margin=self.gate.margin,
                factors=LATENCY_HEALTH_RATIOS,
                dispersion=dispersion,
            )
            for edge, relaxed in zip(edges.harm, edges.health, strict=True)
        ]
        return [mean_of_evidence(values) for values in zip(*by_edge, strict=True)]

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach on enough wealth and a tail that is longer even by the whole ratio."""
        effects = [evidence.effect, evidence.effect_under_load] if self.control else [evidence.effect]
        is_longer = all(effect.ratio >= LATENCY_EFFECT for effect in effects)
        breached = evidence.harm.log >= threshold and is_longer
        return result(self.name, evidence, threshold, breached=breached)
