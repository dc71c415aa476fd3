"""What a gate gathers, and when that is enough.

Every gate gathers evidence in both directions. Harm: a breach needs the wealth of `sequential.Wealth`
over its threshold, and an effect large enough to matter. Health: a pass needs evidence of at least
20 to 1 that the canary is no worse than the margin, not merely the absence of an alarm (Berger 1982,
Multiparameter hypothesis testing and acceptance sampling).
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

from weightshift.analysis.dispersion import Dispersion
from weightshift.analysis.latency_edges import LatencyEdges
from weightshift.analysis.samples import BadCounts, Interval
from weightshift.analysis.sequential import MantelHaenszel, Wealth, comparison_evidence, mean_of_evidence
from weightshift.contracts.verdict import GateResult, GateVerdict

PASS_LOG_EVIDENCE = math.log(20)
HARM_RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class Evidence:
    """What a gate has gathered: harm over the release, everything else since the stage's start."""

    harm: Wealth
    companion: Wealth = field(default_factory=lambda: Wealth.fresh(len(HARM_RATIOS)))
    health: tuple[float, ...] = ()
    effect: MantelHaenszel = field(default_factory=MantelHaenszel)
    dispersion: Dispersion = field(default_factory=Dispersion)
    intervals: int = 0
    problem: str = ""

    def figures(self, threshold: float) -> dict[str, float]:
        """Return the margins to both boundaries, in natural logarithms."""
        return {
            "log_harm": round(self.harm.log, 4),
            "log_harm_boundary": round(threshold, 4),
            "log_health": round(mean_of_evidence(self.health), 4) if self.health else 0.0,
            "log_health_boundary": round(PASS_LOG_EVIDENCE, 4),
        }


class GateRule(Protocol):
    """One gate. Pure: evidence and an interval in, evidence out."""

    @property
    def name(self) -> str:
        """The name results carry."""

    def start(self, harm: Wealth | None) -> Evidence:
        """Begin a stage, with the wealth of the earlier ones."""

    def advance(self, evidence: Evidence, interval: Interval, edges: LatencyEdges | None) -> Evidence:
        """Add one interval."""

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Say what the evidence amounts to; `threshold` is ln of the wealth that is a breach."""


def harm_evidence(
    canary: BadCounts, stable: BadCounts, *, null: float, margin: float, dispersion: float
) -> list[float]:
    """Return ln e that the canary is worse than `null` times stable, for each of `HARM_RATIOS`."""
    return [
        comparison_evidence(
            canary,
            stable,
            null_ratio=null,
            margin=margin,
            alternative_ratio=null * ratio,
            dispersion=dispersion,
        )
        for ratio in HARM_RATIOS
    ]


def result(
    name: str, evidence: Evidence, threshold: float, *, breached: bool, detail: str = ""
) -> GateResult:
    """Turn evidence into a result; a `detail` given with no breach keeps the gate from passing."""
    if breached:
        verdict = GateVerdict.BREACH
    elif evidence.problem:
        verdict, detail = GateVerdict.ERROR, evidence.problem
    elif evidence.health and mean_of_evidence(evidence.health) >= PASS_LOG_EVIDENCE and not detail:
        verdict = GateVerdict.HEALTHY
    else:
        verdict = GateVerdict.INSUFFICIENT
    return GateResult(gate=name, verdict=verdict, detail=detail, figures=evidence.figures(threshold))
