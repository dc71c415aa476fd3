"""Gates on a fraction of bad events: against stable, against a fixed limit, and total failure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weightshift.analysis.bad_events import bad_events, history_of, uncountable
from weightshift.analysis.dispersion import CAP, Dispersion, evidence_cap
from weightshift.analysis.evidence import (
    HARM_RATIOS,
    Evidence,
    add_health,
    evidence_by_ratio,
    fresh_health,
    result,
)
from weightshift.analysis.samples import ArmCounts, BadCounts, Interval
from weightshift.analysis.sequential import Wealth, absolute_evidence
from weightshift.contracts.plan import Gate, Metric
from weightshift.contracts.verdict import GateResult, GateVerdict

HEALTH_FACTORS = (0.3, 0.5, 0.67, 0.8)
RATIO_EFFECT = 1.25
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
class BadEventRatio:
    """The canary's bad events may not be more frequent than stable's, times `ratio`, plus `margin`.

    `weight` is the canary's in percent, at 100 % that of the arm it is compared with.
    """

    gate: Gate
    weight: int

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage."""
        past = history_of([bad_events(self.gate, one.stable, one.edges) for one in history])
        return Evidence(
            harm or Wealth.fresh(len(HARM_RATIOS)),
            health=fresh_health(1, len(HEALTH_FACTORS)),
            dispersion=Dispersion(history=past),
        )

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Add one interval; without a series of this revision it says nothing."""
        canary = bad_events(self.gate, interval.canary, interval.edges)
        stable = bad_events(self.gate, interval.stable, interval.edges)
        if canary is None or stable is None:
            return replace(evidence, missing=uncountable(self.gate, interval))
        dispersion = evidence.dispersion.value(canary, stable)
        ratio = self.gate.ratio or 1.0
        harm = evidence_by_ratio(
            canary, stable, null=ratio, margin=self.gate.margin, factors=HARM_RATIOS, dispersion=dispersion
        )
        health = evidence_by_ratio(
            canary,
            stable,
            null=max(pass_ratio(self.weight), ratio),
            margin=self.gate.margin,
            factors=HEALTH_FACTORS,
            dispersion=dispersion,
        )
        return replace(
            evidence,
            harm=evidence.harm.after(harm, interval=evidence.intervals, cap=evidence_cap(canary, stable)),
            health=add_health(evidence.health, [health]),
            effect=evidence.effect.after(canary, stable),
            dispersion=evidence.dispersion.after(canary, stable),
            intervals=evidence.intervals + 1,
            missing="",
        )

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach on enough wealth and an effect of at least a quarter more bad events."""
        breached = evidence.harm.log >= threshold and evidence.effect.ratio >= RATIO_EFFECT
        return result(self.name, evidence, threshold, breached=breached)


@dataclass(frozen=True)
class Absolute:
    """The canary stays below a fixed limit: of bad events, or of requests slower than a limit.

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
        """The acceptable fraction of bad events."""
        if self.gate.metric is Metric.LATENCY:
            return 1 - self.gate.quantile
        assert self.gate.maximum is not None  # noqa: S101 (an absolute gate has one: Gate checks it)
        return self.gate.maximum

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage."""
        past = history_of([bad_events(self.gate, one.stable, one.edges) for one in history])
        return Evidence(
            harm or Wealth.fresh(len(ERROR_HARM_ODDS)),
            health=fresh_health(1, len(HEALTH_FACTORS)),
            dispersion=Dispersion(history=past),
        )

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Add one interval."""
        canary = bad_events(self.gate, interval.canary, interval.edges)
        stable = bad_events(self.gate, interval.stable, interval.edges)
        if canary is None:
            return self._without_counts(evidence, interval)
        stable = stable or BadCounts((), ())
        alone = evidence.dispersion.of_canary(canary)
        companion = evidence_by_ratio(
            canary,
            stable,
            null=1.0,
            margin=self.gate.margin,
            factors=HARM_RATIOS,
            dispersion=evidence.dispersion.value(canary, stable),
        )
        health = self._against_limit(canary, [self.limit * factor for factor in HEALTH_FACTORS], alone)
        return replace(
            evidence,
            harm=evidence.harm.after(
                self._against_limit(canary, self._alternatives(), alone),
                interval=evidence.intervals,
                cap=CAP,
            ),
            companion=evidence.companion.after(
                companion, interval=evidence.intervals, cap=evidence_cap(canary, stable)
            ),
            health=add_health(evidence.health, [health]),
            dispersion=evidence.dispersion.after(canary, stable),
            intervals=evidence.intervals + 1,
            problem="",
            missing="",
        )

    def _without_counts(self, evidence: Evidence, interval: Interval) -> Evidence:
        reason = uncountable(self.gate, interval)
        if self.gate.metric is Metric.BUSINESS:
            return replace(evidence, missing=reason)
        return replace(evidence, problem=reason)

    def _against_limit(
        self, canary: BadCounts, alternatives: Sequence[float], dispersion: float
    ) -> list[float]:
        return [
            absolute_evidence(canary, null=self.limit, alternative=alternative, dispersion=dispersion)
            for alternative in alternatives
        ]

    def _alternatives(self) -> list[float]:
        odds = self.limit / (1 - self.limit)
        factors = LATENCY_HARM_ODDS if self.gate.metric is Metric.LATENCY else ERROR_HARM_ODDS
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

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage."""
        return Evidence(harm or Wealth.fresh(len(HARD_ALTERNATIVES)))

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Add one interval; while stable itself is in trouble nothing counts against the canary."""
        canary, stable = interval.canary.failures(), interval.stable.failures()
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
