"""Rollback as a function of state: where the healthy generation is decides what happens.

| Position | The healthy generation is on | Rollback |
|---|---|---|
| nothing published | stable, untouched | nothing to do |
| canary published, or carrying traffic | stable | cut to stable, seal the canary |
| publish to stable in flight | stable | cut to stable at once, seal both |
| stable swapping, returning, retiring | the caches | freeze the split, restore stable, shift there, seal |
| stable swapping in waves | the part of stable not granted yet | lessen the canary's share, then as above |
| parachute up | the canary, warm at 0 % | cut to the canary, restore stable, shift there, seal both |
| the same, on a canary that is too small | the canary, for its share | its share, then as for retiring |
| either, but a part of it is missing, or the mesh does not lead there | the caches | as for retiring |
| first release of a service | nowhere | nothing to go back to |
| going back from a canary with traffic | the canary: stable has what is left | leave split and both pools |
| taken back | where it serves | nothing left to do |
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import OnPartial, Plan


class Position(StrEnum):
    """How far a release has moved what serves."""

    UNTOUCHED = "untouched"
    CANARY_PUBLISHED = "canary-published"
    CANARY_SERVING = "canary-serving"
    STABLE_PUBLISH_IN_FLIGHT = "stable-publish-in-flight"
    STABLE_SWAPPING = "stable-swapping"
    STABLE_IN_WAVES = "stable-in-waves"
    PARACHUTE_UP = "parachute-up"
    SMALL_PARACHUTE_UP = "small-parachute-up"
    RETIRING = "retiring"
    FIRST_RELEASE = "first-release"
    RETURNING_FROM_CANARY = "returning-from-canary"
    TAKEN_BACK = "taken-back"


@dataclass(frozen=True)
class RollbackPlan:
    """What a rollback does, in this order; every part may be empty.

    `cut_to`: all traffic goes there at once. `restore_stable`: stable is published the healthy artifact
    and must serve it before traffic goes there. `seal_canary`: the canary is published the healthy
    artifact and may serve nothing older, once traffic has left it.
    """

    cut_to: Cohort | None
    restore_stable: bool
    seal_canary: bool


PARACHUTES = (Position.PARACHUTE_UP, Position.SMALL_PARACHUTE_UP)
"""Where traffic may jump to the canary, which holds the healthy artifact."""

_NOTHING = RollbackPlan(cut_to=None, restore_stable=False, seal_canary=False)
_STABLE_IS_HEALTHY = RollbackPlan(cut_to=Cohort.STABLE, restore_stable=False, seal_canary=True)
_CACHES_ARE_HEALTHY = RollbackPlan(cut_to=None, restore_stable=True, seal_canary=True)

_PLANS = {
    Position.UNTOUCHED: _NOTHING,
    Position.FIRST_RELEASE: _NOTHING,
    Position.RETURNING_FROM_CANARY: _NOTHING,
    Position.TAKEN_BACK: _NOTHING,
    Position.CANARY_PUBLISHED: _STABLE_IS_HEALTHY,
    Position.CANARY_SERVING: _STABLE_IS_HEALTHY,
    Position.STABLE_PUBLISH_IN_FLIGHT: RollbackPlan(
        cut_to=Cohort.STABLE, restore_stable=True, seal_canary=True
    ),
    Position.STABLE_SWAPPING: _CACHES_ARE_HEALTHY,
    Position.STABLE_IN_WAVES: _CACHES_ARE_HEALTHY,
    Position.PARACHUTE_UP: RollbackPlan(cut_to=Cohort.CANARY, restore_stable=True, seal_canary=True),
    Position.SMALL_PARACHUTE_UP: _CACHES_ARE_HEALTHY,
    Position.RETIRING: _CACHES_ARE_HEALTHY,
}
_WITHOUT_WAY_BACK = (Position.FIRST_RELEASE, Position.RETURNING_FROM_CANARY, Position.TAKEN_BACK)
_RELOADING = (
    Position.STABLE_SWAPPING,
    Position.STABLE_IN_WAVES,
    Position.SMALL_PARACHUTE_UP,
    Position.RETIRING,
)


def plan_rollback(position: Position) -> RollbackPlan:
    """Return what a rollback from this position does."""
    return _PLANS[position]


def canary_share(position: Position, plan: Plan, *, granted: float) -> int | None:
    """Return the canary's share (percent) while stable is restored; None to leave the split as it is.

    `granted` is the fraction of stable's capacity that was allowed to swap: the rest is healthy and takes
    over what it can of the canary's requests. A parachute too small for everything takes what it carried.
    """
    weight = plan.stages[-1].weight
    if position is Position.SMALL_PARACHUTE_UP:
        return weight
    if position is Position.STABLE_IN_WAVES:
        return 0 if plan.on_partial is OnPartial.SHED else math.floor(weight * granted)
    return None


def way_back(position: Position, reload_seconds: float | None) -> str:
    """Return what a rollback would cost now: `instant`, `reload ~N s`, or `none`.

    `reload_seconds` is what loading took on the slowest instance, where it was measured.
    """
    if position in _WITHOUT_WAY_BACK:
        return "none"
    if position in _RELOADING:
        return f"reload ~{reload_seconds:.0f} s" if reload_seconds is not None else "reload"
    return "instant"
