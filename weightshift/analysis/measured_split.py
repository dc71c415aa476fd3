"""Whether requests are divided the way the mesh was told to divide them. Pure.

The proxies' word for a split is their configuration; what they do is in the requests that instances count.
"""

import math

from weightshift.contracts.traffic import TrafficSplit

_FEWEST_REQUESTS = 100
_DEVIATIONS = 5.0
_PERCENT = 100.0


def split_problem(split: TrafficSplit, *, canary: int, stable: int, tolerance: float) -> str | None:
    """Return how the counted requests contradict a split, or None.

    The canary's share may be off by `tolerance` percentage points and by what chance alone does: five
    standard deviations of as many fair draws. Too few requests contradict nothing. A mirrored copy counts
    as a request of stable.
    """
    requests = canary + stable
    if requests < _FEWEST_REQUESTS:
        return None
    expected = split.canary / (_PERCENT + split.mirrored)
    measured = canary / requests
    chance = _DEVIATIONS * math.sqrt(expected * (1 - expected) / requests)
    if abs(measured - expected) <= tolerance / _PERCENT + chance:
        return None
    return (
        f"traffic does not follow the split: {measured:.1%} of {requests} requests on the canary, "
        f"{expected:.1%} were set; see whether every proxy has it"
    )
