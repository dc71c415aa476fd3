"""Whether the samples of both arms can be what they claim to be."""

from dataclasses import dataclass, replace

from weightshift.analysis.samples import ArmCounts, Interval

INTERVALS = 3
SHARE_TOLERANCE = 0.1
_STANDARD_ERRORS = 4.0
_FEWEST_REQUESTS = 100


@dataclass(frozen=True)
class Plausibility:
    """How many intervals running the canary's share was off (signed by its direction), or both arms equal."""

    share_off: int = 0
    identical: int = 0
    share: float = 0.0

    def after(self, interval: Interval, weight: int) -> "Plausibility":
        """Add one interval of a stage with this canary weight in percent."""
        identical = self.identical + 1 if _identical(interval.canary, interval.stable) else 0
        requests = interval.canary.requests + interval.stable.requests
        if requests == 0:
            return replace(self, share_off=0, identical=identical)
        share, wanted = interval.canary.requests / requests, weight / 100
        # Few requests stray from the share by chance alone.
        chance = _STANDARD_ERRORS * (wanted * (1 - wanted) / requests) ** 0.5
        off = abs(share - wanted) > max(SHARE_TOLERANCE * wanted, chance)
        direction = 1 if share > wanted else -1
        before = self.share_off if self.share_off * direction > 0 else 0
        return Plausibility(before + direction if off else 0, identical, share)

    def problem(self, weight: int) -> str:
        """Return why nothing may be concluded, or an empty text."""
        if abs(self.share_off) >= INTERVALS:
            return f"the canary got {100 * self.share:.1f} % of the requests instead of {weight} %"
        return ""

    def problem_of_comparisons(self) -> str:
        """Return why the arms may not be compared, or an empty text."""
        if self.identical >= INTERVALS:
            return "both arms have identical counts: they look like one series read twice"
        return ""


def _identical(canary: ArmCounts, stable: ArmCounts) -> bool:
    if min(canary.requests, stable.requests) < _FEWEST_REQUESTS:
        return False
    return _counted(canary) == _counted(stable)


def _counted(arm: ArmCounts) -> list[tuple[int, int, tuple[int, ...]]]:
    return sorted((one.requests, one.errors, one.slower) for one in arm.instances.values())
