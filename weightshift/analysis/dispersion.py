"""How much more than a Poisson count the bad events of healthy instances vary.

Instances of one arm share its bursts, so what differs between them inside an interval is noise of the
instances themselves. Evidence is divided by it. Source: Wedderburn 1974, Quasi-likelihood functions.
"""

from dataclasses import dataclass, field

from weightshift.analysis.samples import BadCounts

PRIOR_DISPERSION = 5.0
"""Assumed where nothing is known yet; also the most that is granted."""

_PRIOR_INTERVALS = 3
_FEW_INSTANCES = 3
CAP = 6.0
CAP_FEW_INSTANCES = 4.0


@dataclass(frozen=True)
class ArmDispersion:
    """Residual and expected variation of one arm over the past intervals of a stage."""

    residual: float = 0.0
    expected: float = 0.0
    intervals: int = 0

    def after(self, counts: BadCounts) -> "ArmDispersion":
        """Add one interval: squared differences between instances and what chance explains."""
        total = counts.total_requests
        if total == 0:
            return self
        bad = counts.total_bad
        shares = [n / total for n in counts.requests]
        return ArmDispersion(
            residual=self.residual
            + sum((y - bad * share) ** 2 for y, share in zip(counts.bad, shares, strict=True)),
            expected=self.expected + bad * (1 - sum(share**2 for share in shares)),
            intervals=self.intervals + 1,
        )

    def value(self, instances: int) -> float:
        """Return the dispersion (at least 1) to apply to the next interval."""
        if self.expected > 0:
            seen = self.residual / self.expected
            blended = (_PRIOR_INTERVALS * PRIOR_DISPERSION + self.intervals * seen) / (
                _PRIOR_INTERVALS + self.intervals
            )
        else:
            blended = PRIOR_DISPERSION
        clipped = min(max(blended, 1.0), PRIOR_DISPERSION)
        # Two instances say little about how a third would differ.
        return 1 + 2 * (clipped - 1) if instances < _FEW_INSTANCES else clipped


@dataclass(frozen=True)
class Dispersion:
    """Both arms together."""

    canary: ArmDispersion = field(default_factory=ArmDispersion)
    stable: ArmDispersion = field(default_factory=ArmDispersion)

    def after(self, canary: BadCounts, stable: BadCounts) -> "Dispersion":
        """Add one interval to both arms."""
        return Dispersion(self.canary.after(canary), self.stable.after(stable))

    def value(self, canary: BadCounts, stable: BadCounts) -> float:
        """Return the dispersion for an interval, from earlier ones only.

        The smaller arm carries most of the variance of a ratio, so each arm's value is weighted with
        the other arm's share of the requests.
        """
        total = canary.total_requests + stable.total_requests
        share = canary.total_requests / total if total else 0.0
        return (1 - share) * self.canary.value(len(canary.requests)) + share * self.stable.value(
            len(stable.requests)
        )


def evidence_cap(canary: BadCounts, stable: BadCounts) -> float:
    """Return the largest factor one interval may contribute."""
    fewest = min(len(canary.requests), len(stable.requests))
    return CAP_FEW_INSTANCES if fewest < _FEW_INSTANCES else CAP
