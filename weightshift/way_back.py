"""Going back after a release has ended: which artifact, and how. Pure."""

import math
from collections.abc import Sequence
from datetime import timedelta

from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.plan import MAX_WAVE, Plan, Promotion, Stage
from weightshift.contracts.release import Outcome, ReleaseRecord
from weightshift.errors import Conflict, UnknownArtifact

EXPEDITED_PLAN = Plan(
    stages=(Stage(weight=100),), window=timedelta(), max_window=timedelta(), retain=timedelta()
)
"""All traffic as soon as the canary is warm: no windows and no judgement, but every check on the artifact."""


def expedited_plan(states: Sequence[InstanceState]) -> Plan:
    """Return how to release an earlier artifact at once on the instances that there are.

    A canary smaller than stable would break under all the traffic: it gets what its capacity is of the
    whole, and stable swaps in place, in one wave.
    """
    live = [state.report for state in states if not state.lost]
    stable = [report.servable_capacity for report in live if report.cohort is Cohort.STABLE]
    canary = sum(report.servable_capacity for report in live if report.cohort is Cohort.CANARY)
    if not canary or canary >= sum(stable):
        return EXPEDITED_PLAN
    share = max(1, math.floor(100 * canary / (canary + sum(stable))))
    return EXPEDITED_PLAN.model_copy(
        update={
            "stages": (Stage(weight=share),),
            "promotion": Promotion.IN_PLACE,
            "wave": min(len(stable), MAX_WAVE),
        }
    )


def previous_artifact(records: Sequence[ReleaseRecord], current: str) -> str:
    """Return the artifact that was promoted before `current`; records come newest first.

    Raises `UnknownArtifact` when there is none.
    """
    promoted = [record.artifact_id for record in records if record.outcome is Outcome.PROMOTED]
    if current in promoted:
        promoted = promoted[promoted.index(current) :]
    earlier = next((artifact_id for artifact_id in promoted if artifact_id != current), None)
    if earlier is None:
        raise UnknownArtifact(
            f"nothing was promoted before {current}; name the artifact to go back to with --to"
        )
    return earlier


def require_serving(wanted: str | None, *serving: str | None) -> None:
    """Raise `Conflict` unless `wanted` is what serves or is being released; None means anything."""
    if wanted is not None and wanted not in serving:
        known = ", ".join(sorted({artifact for artifact in serving if artifact})) or "nothing"
        raise Conflict(f"{wanted} does not serve, {known} does; nothing was changed")
