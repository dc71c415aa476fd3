"""What the canary is compared with once it carries everything."""

from enum import StrEnum

from weightshift.contracts.traffic import TrafficSplit

CONTROL_PERCENT = 5


class Control(StrEnum):
    """The arm to compare with in a last stage of 100 %.

    `mirror`: 5 % of the requests are copied to the idle, warm stable pool, and its answers dropped.
    `holdback`: 5 % of the requests stay on stable until promotion. `none`: nothing is compared; absolute
    gates alone hold and do not roll back, only the hard gate does.
    """

    MIRROR = "mirror"
    HOLDBACK = "holdback"
    NONE = "none"


def with_control(split: TrafficSplit, control: Control) -> TrafficSplit:
    """Return a split with the arm to compare with, where the canary would carry everything. Pure."""
    if split.canary < 100 or control is Control.NONE:
        return split
    if control is Control.HOLDBACK:
        return TrafficSplit.with_canary(100 - CONTROL_PERCENT, sticky=split.sticky)
    return TrafficSplit.with_canary(100, mirrored=CONTROL_PERCENT, sticky=split.sticky)


def control_share(weight: int, split: TrafficSplit | None) -> int:
    """Return the percentage of requests that a stage of 100 % is compared by; 0 where it is not. Pure."""
    if weight < 100 or split is None:
        return 0
    return split.mirrored or split.stable
