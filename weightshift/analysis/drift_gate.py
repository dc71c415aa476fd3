"""The gate that compares the distributions of the model's outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weightshift.analysis.bad_events import history_of
from weightshift.analysis.dispersion import Dispersion, evidence_cap
from weightshift.analysis.evidence import Evidence, add_health, evidence_by_ratio, fresh_health, result
from weightshift.analysis.samples import ArmCounts, BadCounts, Interval
from weightshift.analysis.sequential import Wealth, mean_of_evidence
from weightshift.contracts.plan import Gate
from weightshift.contracts.verdict import GateResult

DRIFT_HARM_RATIOS = (1.05, 1.15, 1.3, 1.6, 2.5)
DRIFT_HEALTH_RATIOS = (0.5, 0.7, 0.8, 0.9, 0.97)
DECILES = 9
MINIMUM_SCORES = 200


def decile_edges(stable: ArmCounts, score_edges: tuple[float, ...]) -> tuple[int, ...] | None:
    """Pick the score edges nearest to stable's nine deciles; None while there are too few scores."""
    scored = sum(counts.scored for counts in stable.instances.values())
    if scored < MINIMUM_SCORES or len(stable.totals_above) != len(score_edges):
        return None
    above = [count / scored for count in stable.totals_above]
    return tuple(
        min(range(len(above)), key=lambda i: abs(above[i] - (1 - decile / 10)))
        for decile in range(1, DECILES + 1)
    )


@dataclass(frozen=True)
class ScoreDrift:
    """The canary's scores may be distributed differently from stable's by at most `maximum`.

    `maximum` is the distance of the cumulative distributions at stable's deciles, tested in both
    directions. It must leave room for retraining: a test of equality rolls back every new model.
    """

    gate: Gate

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage; how stable's instances differ is measured at the middle decile."""
        deciles = decile_edges(calibration.stable, calibration.score_edges)
        same = [one for one in history if one.score_edges == calibration.score_edges]
        past = history_of([one.stable.scores_above(deciles[DECILES // 2]) for one in same] if deciles else [])
        return Evidence(
            harm or Wealth.fresh(len(DRIFT_HARM_RATIOS)),
            health=fresh_health(2 * DECILES, len(DRIFT_HEALTH_RATIOS)),
            dispersion=Dispersion(history=past),
        )

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Add one interval; without scores it says nothing."""
        deciles = decile_edges(calibration, interval.score_edges)
        if deciles is None:
            return replace(evidence, missing="no scores of stable to compare with")
        middle = deciles[DECILES // 2]
        canary, stable = interval.canary.scores_above(middle), interval.stable.scores_above(middle)
        dispersion = evidence.dispersion.value(canary, stable)
        pairs = _both_directions(interval, deciles)
        harm = [self._compare(pair, DRIFT_HARM_RATIOS, dispersion) for pair in pairs]
        return replace(
            evidence,
            harm=evidence.harm.after(
                [mean_of_evidence(values) for values in zip(*harm, strict=True)],
                interval=evidence.intervals,
                cap=evidence_cap(canary, stable),
            ),
            health=add_health(
                evidence.health, [self._compare(pair, DRIFT_HEALTH_RATIOS, dispersion) for pair in pairs]
            ),
            dispersion=evidence.dispersion.after(canary, stable),
            intervals=evidence.intervals + 1,
            missing="",
        )

    def _compare(
        self, pair: tuple[BadCounts, BadCounts], ratios: tuple[float, ...], dispersion: float
    ) -> list[float]:
        margin = self.gate.maximum or 0.0
        return evidence_by_ratio(*pair, null=1.0, margin=margin, factors=ratios, dispersion=dispersion)

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach on enough wealth."""
        breached = evidence.harm.log >= threshold
        return result(self.name, evidence, threshold, breached=breached)


def _both_directions(interval: Interval, deciles: tuple[int, ...]) -> list[tuple[BadCounts, BadCounts]]:
    above = [(interval.canary.scores_above(edge), interval.stable.scores_above(edge)) for edge in deciles]
    return above + [(canary.complement(), stable.complement()) for canary, stable in above]
