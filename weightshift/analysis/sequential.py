"""Evidence that stays valid however often it is looked at.

The primitive compares two Poisson or Bernoulli counts of the same interval and never pools over time,
so that bursts both arms share cancel exactly. Wealth multiplies it, with restarts, so that old health
cannot hide new harm. All logarithms are natural.

Sources: Lindon & Malek 2022, Anytime-Valid Inference for Multinomial Count Data (the primitive); Shin,
Ramdas & Rinaldo 2024, E-detectors (restarts); Vovk & Wang 2021, E-values: Calibration, combination and
applications (averaging).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from weightshift.analysis.samples import BadCounts

_LARGEST_EXPONENT = 300.0
_FIRST_INTERVAL_BET = 0.4
_LATER_BET_BASE = 200


def comparison_evidence(
    canary: BadCounts,
    stable: BadCounts,
    *,
    null_ratio: float,
    margin: float,
    alternative_ratios: Sequence[float],
    dispersion: float,
) -> list[float]:
    """Return ln e against the null `p_canary <= null_ratio * p_stable + margin`, for each alternative.

    `p_stable` may be anything and may change over time. With an alternative below the null ratio the
    same formula is evidence against the reverse null. An arm without requests gives 0.
    """
    n_canary, n_stable = canary.total_requests, stable.total_requests
    if n_canary == 0 or n_stable == 0:
        return [0.0 for _ in alternative_ratios]
    bad_canary, bad_stable = canary.total_bad, stable.total_bad
    evidence = []
    for alternative in alternative_ratios:
        u, log_u, log_v = _stakes(n_canary, n_stable, null_ratio, alternative)
        log_evidence = bad_canary * log_u + bad_stable * log_v - n_canary * margin * (u - 1)
        evidence.append(log_evidence / dispersion)
    return evidence


@lru_cache(maxsize=256)
def _stakes(n_canary: int, n_stable: int, null: float, alternative: float) -> tuple[float, float, float]:
    """Return what a bad event of either arm is worth; the same for every gate of an interval."""
    v = (n_canary * null + n_stable) / (n_canary * alternative + n_stable)
    u = alternative / null * v
    return u, math.log(u), math.log(v)


def absolute_evidence(arm: BadCounts, *, null: float, alternative: float, dispersion: float) -> float:
    """Return ln e against the null that the arm's bad fraction is at most `null`.

    With an alternative below `null`, evidence that the fraction is below it.
    """
    bad, good = arm.total_bad, arm.total_requests - arm.total_bad
    log_evidence = bad * math.log(alternative / null) + good * math.log((1 - alternative) / (1 - null))
    return log_evidence / dispersion


def mean_of_evidence(log_values: Sequence[float]) -> float:
    """Return ln of the mean of the evidence values: still valid whatever their dependence."""
    return log_sum(log_values) - math.log(len(log_values))


def log_sum(log_values: Sequence[float]) -> float:
    """Return ln of the sum of exponentials, without overflow."""
    largest = max(log_values)
    if math.isinf(largest):
        return largest
    return largest + math.log(sum(math.exp(value - largest) for value in log_values))


@dataclass(frozen=True)
class Wealth:
    """What a sceptic who bets against health has earned; 1 at the start of a release.

    `idle` is not yet bet; `active` holds one running bet per alternative. Every interval a fraction of
    the idle part joins, which restarts the detector. By Ville's inequality the wealth of a healthy
    canary exceeds 1/alpha at most with probability alpha, over the whole release.
    """

    active: tuple[float, ...]
    idle: float = 1.0

    @classmethod
    def fresh(cls, alternatives: int) -> "Wealth":
        """Start with nothing bet, over this number of alternatives."""
        return cls(active=(0.0,) * alternatives)

    def after(self, log_evidence: Sequence[float], *, interval: int, cap: float | None) -> "Wealth":
        """Return the wealth after an interval, the `interval`-th of its stage counted from 0.

        `cap` limits each factor, so that only repeated evidence acts.
        """
        bet = _FIRST_INTERVAL_BET if interval == 0 else 1 / (_LATER_BET_BASE + interval)
        joined = bet * self.idle / len(self.active)
        factors = [math.exp(min(value, _LARGEST_EXPONENT)) for value in log_evidence]
        if cap is not None:
            factors = [min(factor, cap) for factor in factors]
        active = [
            min((running + joined) * factor, math.exp(_LARGEST_EXPONENT))
            for running, factor in zip(self.active, factors, strict=True)
        ]
        return Wealth(active=tuple(active), idle=(1 - bet) * self.idle)

    @property
    def log(self) -> float:
        """Return ln of everything owned."""
        return math.log(self.idle + sum(self.active))


@dataclass(frozen=True)
class MantelHaenszel:
    """The ratio of bad fractions, stratified by interval, so that a common trend does not enter it."""

    canary: float = 0.0
    stable: float = 0.0

    def after(self, canary: BadCounts, stable: BadCounts) -> "MantelHaenszel":
        """Add one interval."""
        total = canary.total_requests + stable.total_requests
        if total == 0:
            return self
        return MantelHaenszel(
            self.canary + canary.total_bad * stable.total_requests / total,
            self.stable + stable.total_bad * canary.total_requests / total,
        )

    @property
    def ratio(self) -> float:
        """Return canary over stable; infinite when only the canary has bad events, 0 without any."""
        if self.stable == 0:
            return math.inf if self.canary > 0 else 0.0
        return self.canary / self.stable
