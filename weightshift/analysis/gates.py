"""The gates: what each counts as bad, and what makes it a breach."""

from dataclasses import dataclass, replace

from weightshift.analysis.dispersion import CAP, evidence_cap
from weightshift.analysis.evidence import HARM_RATIOS, Evidence, harm_evidence, result
from weightshift.analysis.latency_edges import LatencyEdges
from weightshift.analysis.samples import BadCounts, Interval
from weightshift.analysis.sequential import Wealth, absolute_evidence, comparison_evidence, mean_of_evidence
from weightshift.contracts.plan import Gate, Metric
from weightshift.contracts.verdict import GateResult, GateVerdict

HEALTH_FACTORS = (0.3, 0.5, 0.67, 0.8)
LATENCY_HEALTH_RATIOS = (0.2, 0.35, 0.5, 0.7, 0.85)
LATENCY_NULL_RATIO = 1.1
ERROR_EFFECT = 1.25
LATENCY_EFFECT = 1.0
ERROR_HARM_ODDS = (1.7, 3.6, 13.9, 291.0)
LATENCY_HARM_ODDS = (1.5, 3.06, 11.0, 99.0)
HARD_NULL = 0.25
HARD_ALTERNATIVES = (0.5, 0.9, 0.99)
HARD_DISPERSION = 3.0
STABLE_IN_TROUBLE = 0.05


def pass_ratio(weight: int) -> float:
    """Return how many times stable's bad fraction is still acceptable, by canary weight in percent."""
    return 2.0 if weight < 25 else 1.5


@dataclass(frozen=True)
class ErrorRatio:
    """The canary may not fail more often than stable, times `ratio`, plus `margin`."""

    gate: Gate
    weight: int

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    def start(self, harm: Wealth | None) -> Evidence:
        """Begin a stage."""
        return Evidence(harm or Wealth.fresh(len(HARM_RATIOS)), health=(0.0,) * len(HEALTH_FACTORS))

    def advance(self, evidence: Evidence, interval: Interval, edges: LatencyEdges | None) -> Evidence:
        """Add one interval."""
        canary, stable = interval.canary.errors(), interval.stable.errors()
        dispersion = evidence.dispersion.value(canary, stable)
        assert self.gate.ratio is not None  # noqa: S101 (a comparative gate has one: Gate checks it)
        harm = harm_evidence(
            canary, stable, null=self.gate.ratio, margin=self.gate.margin, dispersion=dispersion
        )
        accepted = max(pass_ratio(self.weight), self.gate.ratio)
        health = [
            comparison_evidence(
                canary,
                stable,
                null_ratio=accepted,
                margin=self.gate.margin,
                alternative_ratio=accepted * factor,
                dispersion=dispersion,
            )
            for factor in HEALTH_FACTORS
        ]
        return replace(
            evidence,
            harm=evidence.harm.after(harm, interval=evidence.intervals, cap=evidence_cap(canary, stable)),
            health=tuple(a + b for a, b in zip(evidence.health, health, strict=True)),
            effect=evidence.effect.after(canary, stable),
            dispersion=evidence.dispersion.after(canary, stable),
            intervals=evidence.intervals + 1,
        )

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach on enough wealth and an effect of at least a quarter more errors."""
        breached = evidence.harm.log >= threshold and evidence.effect.ratio >= ERROR_EFFECT
        return result(self.name, evidence, threshold, breached=breached)


@dataclass(frozen=True)
class LatencyRatio:
    """The canary's upper quantile may not exceed stable's by more than the factor `ratio`.

    Compares tails beyond latencies taken from stable's earlier requests; see `LatencyEdges`.
    """

    gate: Gate
    weight: int

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    def start(self, harm: Wealth | None) -> Evidence:
        """Begin a stage."""
        return Evidence(harm or Wealth.fresh(len(HARM_RATIOS)), health=(0.0,) * len(LATENCY_HEALTH_RATIOS))

    def advance(self, evidence: Evidence, interval: Interval, edges: LatencyEdges | None) -> Evidence:
        """Add one interval; without edges it says nothing."""
        if edges is None:
            return replace(evidence, problem="stable's earlier requests show no tail to compare with")
        middle_canary = interval.canary.slower_than(edges.middle)
        middle_stable = interval.stable.slower_than(edges.middle)
        dispersion = evidence.dispersion.value(middle_canary, middle_stable)
        return replace(
            evidence,
            harm=evidence.harm.after(
                self._harm(interval, edges, dispersion),
                interval=evidence.intervals,
                cap=evidence_cap(middle_canary, middle_stable),
            ),
            health=tuple(
                a + b for a, b in zip(evidence.health, self._health(interval, edges, dispersion), strict=True)
            ),
            effect=evidence.effect.after(
                interval.canary.slower_than(edges.middle_times_ratio), middle_stable
            ),
            dispersion=evidence.dispersion.after(middle_canary, middle_stable),
            intervals=evidence.intervals + 1,
            problem="",
        )

    def _harm(self, interval: Interval, edges: LatencyEdges, dispersion: float) -> list[float]:
        by_edge = [
            harm_evidence(
                interval.canary.slower_than(edge),
                interval.stable.slower_than(edge),
                null=LATENCY_NULL_RATIO,
                margin=self.gate.margin,
                dispersion=dispersion,
            )
            for edge in edges.harm
        ]
        return [mean_of_evidence(values) for values in zip(*by_edge, strict=True)]

    def _health(self, interval: Interval, edges: LatencyEdges, dispersion: float) -> list[float]:
        return [
            mean_of_evidence(
                [
                    comparison_evidence(
                        interval.canary.slower_than(relaxed),
                        interval.stable.slower_than(edge),
                        null_ratio=1.0,
                        margin=self.gate.margin,
                        alternative_ratio=ratio,
                        dispersion=dispersion,
                    )
                    for edge, relaxed in zip(edges.harm, edges.health, strict=True)
                ]
            )
            for ratio in LATENCY_HEALTH_RATIOS
        ]

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach on enough wealth and a tail that is longer even by the whole ratio."""
        breached = evidence.harm.log >= threshold and evidence.effect.ratio >= LATENCY_EFFECT
        return result(self.name, evidence, threshold, breached=breached)


@dataclass(frozen=True)
class Absolute:
    """The canary stays below a fixed limit: of failed requests, or of requests slower than a limit.

    A breach also needs evidence that stable does better: when both are over the limit, or there is no
    stable arm to compare with, the environment may be the cause, and the stage holds.
    """

    gate: Gate

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    @property
    def limit(self) -> float:
        """The acceptable fraction of bad requests."""
        if self.gate.metric is Metric.LATENCY:
            return 1 - self.gate.quantile
        assert self.gate.maximum is not None  # noqa: S101 (an absolute gate has one: Gate checks it)
        return self.gate.maximum

    def start(self, harm: Wealth | None) -> Evidence:
        """Begin a stage."""
        return Evidence(harm or Wealth.fresh(len(ERROR_HARM_ODDS)), health=(0.0,) * len(HEALTH_FACTORS))

    def advance(self, evidence: Evidence, interval: Interval, edges: LatencyEdges | None) -> Evidence:
        """Add one interval."""
        counted = self._count(interval)
        if counted is None:
            return replace(evidence, problem=f"no latency bucket reaches {self.gate.maximum} s")
        canary, stable = counted
        alone = evidence.dispersion.canary.value(len(canary.requests))
        harm = [
            absolute_evidence(canary, null=self.limit, alternative=alternative, dispersion=alone)
            for alternative in self._alternatives()
        ]
        health = [
            absolute_evidence(canary, null=self.limit, alternative=self.limit * factor, dispersion=alone)
            for factor in HEALTH_FACTORS
        ]
        companion = harm_evidence(
            canary,
            stable,
            null=1.0,
            margin=self.gate.margin,
            dispersion=evidence.dispersion.value(canary, stable),
        )
        return replace(
            evidence,
            harm=evidence.harm.after(harm, interval=evidence.intervals, cap=CAP),
            companion=evidence.companion.after(
                companion, interval=evidence.intervals, cap=evidence_cap(canary, stable)
            ),
            health=tuple(a + b for a, b in zip(evidence.health, health, strict=True)),
            dispersion=evidence.dispersion.after(canary, stable),
            intervals=evidence.intervals + 1,
        )

    def _count(self, interval: Interval) -> tuple[BadCounts, BadCounts] | None:
        if self.gate.metric is Metric.ERROR_RATE:
            return interval.canary.errors(), interval.stable.errors()
        reaching = [i for i, edge in enumerate(interval.edges) if edge >= (self.gate.maximum or 0)]
        if not reaching:
            return None
        return interval.canary.slower_than(reaching[0]), interval.stable.slower_than(reaching[0])

    def _alternatives(self) -> list[float]:
        odds = self.limit / (1 - self.limit)
        factors = ERROR_HARM_ODDS if self.gate.metric is Metric.ERROR_RATE else LATENCY_HARM_ODDS
        return [odds * factor / (1 + odds * factor) for factor in factors]

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach when the canary is over the limit and stable is better."""
        over = evidence.harm.log >= threshold
        breached = over and evidence.companion.log >= threshold
        detail = "" if not over or breached else "over the limit, but no evidence that stable is better"
        return result(self.name, evidence, threshold, breached=breached, detail=detail)


@dataclass(frozen=True)
class Hard:
    """Total failure: more than a quarter of the canary's requests fail. Always on, acts at once."""

    name: str = "hard"

    def start(self, harm: Wealth | None) -> Evidence:
        """Begin a stage."""
        return Evidence(harm or Wealth.fresh(len(HARD_ALTERNATIVES)))

    def advance(self, evidence: Evidence, interval: Interval, edges: LatencyEdges | None) -> Evidence:
        """Add one interval; while stable itself is in trouble nothing counts against the canary."""
        canary, stable = interval.canary.errors(), interval.stable.errors()
        harm = [
            absolute_evidence(canary, null=HARD_NULL, alternative=alternative, dispersion=HARD_DISPERSION)
            for alternative in HARD_ALTERNATIVES
        ]
        if stable.total_bad > STABLE_IN_TROUBLE * stable.total_requests:
            harm = [min(value, 0.0) for value in harm]
        return replace(
            evidence,
            harm=evidence.harm.after(harm, interval=evidence.intervals, cap=None),
            intervals=evidence.intervals + 1,
        )

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach on enough wealth; otherwise it has nothing to say for or against."""
        verdict = GateVerdict.BREACH if evidence.harm.log >= threshold else GateVerdict.NOT_APPLICABLE
        return GateResult(gate=self.name, verdict=verdict, figures=evidence.figures(threshold))
