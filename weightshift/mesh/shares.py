"""How a split becomes weights where a route has other destinations of its own. Pure."""

from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import RouteInvalid

WHOLE = 100


def owned_share(stable: int, canary: int, others: int) -> int:
    """Return the sum that stable and canary have to divide, so that other destinations keep their share.

    Alone in a route they divide 100. Raises `RouteInvalid` when others have left them no weight.
    """
    if not others:
        return WHOLE
    if stable + canary < 1:
        raise RouteInvalid("other destinations of the route carry everything; give stable a weight")
    return stable + canary


def apportion(split: TrafficSplit, share: int) -> tuple[int, int]:
    """Return the weights of stable and canary out of `share`, rounded to whole weights.

    Only 0 and 100 % become nothing and everything: whatever else is asked for, both get something. Raises
    `RouteInvalid` when the share is too small to be divided.
    """
    if split.is_terminal:
        return (share, 0) if split.canary == 0 else (0, share)
    if share < 2:
        raise RouteInvalid(f"stable and canary have a weight of {share} together; give them at least 2")
    canary = min(max((share * split.canary + WHOLE // 2) // WHOLE, 1), share - 1)
    return share - canary, canary


def percent_of(stable: int, canary: int) -> int:
    """Return the canary's percentage of two weights; 0 where neither has any.

    A weight below zero, which nobody should have let pass, counts as none.
    """
    stable, canary = max(stable, 0), max(canary, 0)
    if stable + canary == 0:
        return 0
    return (WHOLE * canary + (stable + canary) // 2) // (stable + canary)
