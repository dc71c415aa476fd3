"""What a gate gathers, and when that is enough.

Every gate gathers evidence in both directions. Harm: a breach needs the wealth of `sequential.Wealth`
over its threshold, and an effect large enough to matter. Health: a pass needs evidence of at least
20 to 1 that the canary is no worse than the margin, not merely the absence of an alarm (Berger 1982,
Multiparameter hypothesis testing and acceptance sampling).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weightshift.analysis.dispersion import Dispersion
from weightshift.analysis.samples import ArmCounts, BadCounts, Interval
from weightshift.analysis.sequential import MantelHaenszel, Wealth, comparison_evidence, mean_of_evidence
from weightshift.contracts.verdict import GateResult, GateVerdict

PASS_LOG_EVIDENCE = math.log(20)
HARM_RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0)

Health = tuple[tuple[float, ...], ...]
"""For each null that must be refuted before a pass, ln of the evidence under each alternative."""


@dataclass(frozen=True)
class Evidence:
    """What a gate has gathered: harm over the release, everything else since the stage's start.

    `effect` compares both arms interval by interval, `effect_under_load` the canary with what stable did
    while it had traffic. `problem` is why the latest interval could not be judged, `missing` which samples
    it lacked.
    """

    harm: Wealth
    companion: Wealth = field(default_factory=lambda: Wealth.fresh(len(HARM_RATIOS)))
    health: Health = ()
    effect: MantelHaenszel = field(default_factory=MantelHaenszel)
    effect_under_load: MantelHaenszel = field(default_factory=MantelHaenszel)
    dispersion: Dispersion = field(default_factory=Dispersion)
    intervals: int = 0
    problem: str = ""
    missing: str = ""

    @property
    def log_health(self) -> float:
        """Return ln of the evidence of health: that of the weakest of its parts."""
        return min((mean_of_evidence(part) for part in self.health), default=-math.inf)

    def figures(self, threshold: float) -> dict[str, float]:
        """Return the margins to both boundaries, in natural logarithms."""
        return {
            "log_harm": round(self.harm.log, 4),
            "log_harm_boundary": round(threshold, 4),
            "log_health": round(self.log_health, 4) if self.health else 0.0,
            "log_health_boundary": round(PASS_LOG_EVIDENCE, 4),
        }


class GateRule(Protocol):
    """One gate. Pure: evidence and an interval in, evidence out."""

    @property
    def name(self) -> str:
        """The name results carry."""

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage, with the wealth of the earlier ones, and what stable did before.

        `calibration` is all of it in one and decides where distributions are compared; `history` has it
        interval by interval and shows how much instances differ. Its edges may be fewer.
        """

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Add one interval; `calibration` is everything stable did before it."""

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Say what the evidence amounts to; `threshold` is ln of the wealth that is a breach."""


def fresh_health(parts: int, alternatives: int) -> Health:
    """Return no evidence of health yet."""
    return ((0.0,) * alternatives,) * parts


def add_health(earlier: Health, step: Sequence[Sequence[float]]) -> Health:
    """Add an interval's evidence of health."""
    return tuple(
        tuple(a + b for a, b in zip(part, added, strict=True))
        for part, added in zip(earlier, step, strict=True)
    )


def evidence_by_ratio(
    canary: BadCounts,
    stable: BadCounts,
    *,
    null: float,
    margin: float,
    factors: Sequence[float],
    dispersion: float,
) -> list[float]:
    """Return ln e against `p_canary <= null * p_stable + margin`, for each alternative `null * factor`.

    With factors below 1 it is evidence against the reverse: that the canary is at least that bad.
    """
    return comparison_evidence(
        canary,
        stable,
        null_ratio=null,
        margin=margin,
        alternative_ratios=[null * factor for factor in factors],
        dispersion=dispersion,
    )


def result(
    name: str, evidence: Evidence, threshold: float, *, breached: bool, detail: str = ""
) -> GateResult:
    """Turn evidence into a result; a `detail` given with no breach keeps the gate from passing."""
    if breached:
        verdict = GateVerdict.BREACH
    elif evidence.missing:
        verdict, detail = GateVerdict.NO_DATA, evidence.missing
    elif evidence.problem:
        verdict, detail = GateVerdict.ERROR, evidence.problem
    elif evidence.log_health >= PASS_LOG_EVIDENCE and not detail:
        verdict = GateVerdict.HEALTHY
    else:
        verdict, detail = GateVerdict.INSUFFICIENT, detail or _what_is_missing(evidence)
    return GateResult(gate=name, verdict=verdict, detail=detail, figures=evidence.figures(threshold))


def _what_is_missing(evidence: Evidence) -> str:
    """Say how far the evidence of health is, and how long it takes to be enough at this pace."""
    gathered = evidence.log_health
    if not evidence.intervals:
        return ""
    so_far = f"evidence of health {gathered:.1f} of {PASS_LOG_EVIDENCE:.1f}"
    if gathered <= 0:
        return f"{so_far}: none yet after {evidence.intervals} intervals"
    missing = math.ceil(evidence.intervals * (PASS_LOG_EVIDENCE / gathered - 1))
    return f"{so_far}: about {missing} more intervals at this pace"
