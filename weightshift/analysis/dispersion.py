"""How much more than a Poisson count the bad events of healthy instances vary.

Instances of one arm share its bursts, so what differs between them inside an interval is noise of the
instances themselves. Evidence is divided by it. How much is normal comes from stable's last hour; what
the stage shows moves it only within the bounds of that hour, so that a bursty canary buys no tolerance.
Source: Wedderburn 1974, Quasi-likelihood functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from weightshift.analysis.samples import BadCounts
from weightshift.analysis.sequential import MantelHaenszel

PRIOR_DISPERSION = 5.0
"""Assumed where there is no history; also the most that is granted then."""

BLOCK_LENGTHS = (1, 6, 12)
"""Intervals per block. Longer blocks show noise that persists and adds up over a stage."""

CAP = 6.0
CAP_FEW_INSTANCES = 4.0
_FEW_INSTANCES = 3
_PRIOR_INTERVALS = 3
_FEWEST_BLOCKS = 5
_LARGEST_CARRY = 10.0
# Keeps the ratio of two excesses finite where instances vary no more than chance.
_EXCESS_OFFSET = 0.8


@dataclass(frozen=True)
class DispersionHistory:
    """What healthy instances did before: one interval's dispersion, and the largest over block lengths.

    `carry` is how much of an interval's excess goes on into the longest blocks; `requests` is the mean
    number of requests of an instance in an interval, 0 when there is no history.
    """

    single: float = PRIOR_DISPERSION
    top: float = PRIOR_DISPERSION
    carry: float = 1.0
    requests: float = 0.0

    @classmethod
    def from_intervals(cls, intervals: Sequence[BadCounts]) -> "DispersionHistory":
        """Measure stable's past intervals; too few, or a single instance, give the prior.

        Every interval must list the same instances in the same order.
        """
        instances = len(intervals[0].requests) if intervals else 0
        measured = [
            block_dispersion(intervals, length)
            for length in BLOCK_LENGTHS
            if len(intervals) // length >= _FEWEST_BLOCKS
        ]
        if instances < 2 or not measured or sum(one.total_bad for one in intervals) == 0:
            return cls()
        single, top = max(1.0, measured[0]), max(1.0, *measured)
        carry = min(max((top - _EXCESS_OFFSET) / (single - _EXCESS_OFFSET), 1.0), _LARGEST_CARRY)
        requests = sum(one.total_requests for one in intervals) / (len(intervals) * instances)
        return cls(single=single, top=top, carry=carry, requests=requests)

    def load(self, counts: BadCounts) -> float:
        """Return how many times the requests of the history an instance gets now."""
        if self.requests == 0 or not counts.requests:
            return 1.0
        return counts.total_requests / len(counts.requests) / self.requests


def block_dispersion(intervals: Sequence[BadCounts], length: int) -> float:
    """Return the dispersion of instances' bad events summed over blocks of `length` intervals."""
    instances = range(len(intervals[0].requests))
    rates = [
        (sum(one.bad[i] for one in intervals) + 0.5) / (sum(one.requests[i] for one in intervals) + 1)
        for i in instances
    ]
    blocks = len(intervals) // length
    squares = expected = 0.0
    for block in range(blocks):
        residuals = [0.0 for _ in instances]
        for one in intervals[block * length : (block + 1) * length]:
            weights = [n * rate for n, rate in zip(one.requests, rates, strict=True)]
            total = sum(weights)
            for i in instances if total else ():
                share = weights[i] / total
                residuals[i] += one.bad[i] - one.total_bad * share
                expected += one.total_bad * share * (1 - share)
        squares += sum(residual**2 for residual in residuals)
    return blocks / (blocks - 1) * squares / expected if expected else 1.0


@dataclass(frozen=True)
class Variation:
    """Residual and expected variation over the past intervals of a stage."""

    residual: float = 0.0
    expected: float = 0.0
    intervals: int = 0

    def after(self, residual: float, expected: float) -> "Variation":
        """Add one interval: squared differences, and what chance explains of them."""
        return Variation(self.residual + residual, self.expected + expected, self.intervals + 1)

    def between_instances(self, counts: BadCounts) -> "Variation":
        """Add one interval of an arm: how its instances differ from each other."""
        total, bad = counts.total_requests, counts.total_bad
        if total == 0:
            return self
        shares = [n / total for n in counts.requests]
        residual = sum((y - bad * share) ** 2 for y, share in zip(counts.bad, shares, strict=True))
        return self.after(residual, bad * (1 - sum(share**2 for share in shares)))

    def dispersion(self, history: DispersionHistory, *, load: float, instances: int) -> float:
        """Return the dispersion (at least 1) to apply to the next interval."""
        linear = 1 + (history.single - 1) * load
        seen = self.residual / self.expected if self.expected > 0 else linear
        blended = (_PRIOR_INTERVALS * linear + self.intervals * seen) / (_PRIOR_INTERVALS + self.intervals)
        most = max(history.top, 1 + (history.top - 1) * load)
        value = min(max(1 + history.carry * (blended - 1), 1.0), most)
        # One or two instances say little about how a third would differ.
        return 1 + 2 * (value - 1) if instances < _FEW_INSTANCES else value


@dataclass(frozen=True)
class Dispersion:
    """Both arms together, in one stage.

    An arm of one instance has nothing to differ from, so it is measured by how far the canary's bad
    events lie from the share they would have at the ratio seen so far.
    """

    history: DispersionHistory = field(default_factory=DispersionHistory)
    canary: Variation = field(default_factory=Variation)
    stable: Variation = field(default_factory=Variation)
    between_arms: Variation = field(default_factory=Variation)
    ratio: MantelHaenszel = field(default_factory=MantelHaenszel)

    def after(self, canary: BadCounts, stable: BadCounts) -> "Dispersion":
        """Add one interval to both arms."""
        return Dispersion(
            history=self.history,
            canary=self.canary.between_instances(canary),
            stable=self.stable.between_instances(stable),
            between_arms=self._after_between_arms(canary, stable),
            ratio=self.ratio.after(canary, stable),
        )

    def _after_between_arms(self, canary: BadCounts, stable: BadCounts) -> Variation:
        earlier = (self.ratio.canary + 0.5) / (self.ratio.stable + 0.5)
        weight = canary.total_requests * earlier
        if weight + stable.total_requests == 0:
            return self.between_arms
        share = weight / (weight + stable.total_requests)
        bad = canary.total_bad + stable.total_bad
        return self.between_arms.after((canary.total_bad - bad * share) ** 2, bad * share * (1 - share))

    def of_canary(self, canary: BadCounts) -> float:
        """Return the dispersion of the canary alone, from earlier intervals only."""
        return self._of_arm(self.canary, canary)

    def value(self, canary: BadCounts, stable: BadCounts) -> float:
        """Return the dispersion for an interval, from earlier ones only.

        The smaller arm carries most of the variance of a ratio, so each arm's value is weighted with
        the other arm's share of the requests.
        """
        total = canary.total_requests + stable.total_requests
        share = canary.total_requests / total if total else 0.0
        return (1 - share) * self._of_arm(self.canary, canary) + share * self._of_arm(self.stable, stable)

    def _of_arm(self, own: Variation, counts: BadCounts) -> float:
        instances = len(counts.requests)
        seen = self.between_arms if instances == 1 else own
        return seen.dispersion(self.history, load=self.history.load(counts), instances=instances)


def evidence_cap(canary: BadCounts, stable: BadCounts) -> float:
    """Return the largest factor one interval may contribute."""
    fewest = min(len(canary.requests), len(stable.requests))
    return CAP_FEW_INSTANCES if fewest < _FEW_INSTANCES else CAP
