"""Going back after a release went through: which artifact, how, and at what cost. Pure."""

import math
from collections.abc import Sequence
from datetime import timedelta

from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.plan import MAX_WAVE, Plan, Promotion, Stage
from weightshift.contracts.release import Outcome, Parachute, ReleaseRecord
from weightshift.errors import Conflict, UnknownArtifact
from weightshift.readiness import unready

_GOING_BACK = "rollback:"

EXPEDITED_PLAN = Plan(
    stages=(Stage(weight=100),), window=timedelta(), max_window=timedelta(), retain=timedelta()
)
"""All traffic as soon as the canary is warm: no windows and no judgement, but every check on the artifact."""


def expedited_plan(states: Sequence[InstanceState]) -> Plan:
    """Return how to release an earlier artifact at once on the instances that there are.

    A canary smaller than stable would break under all the traffic: it gets what its capacity is of the
    whole, and stable swaps in place, in one wave. One whose pods were all let go gets a pod for it.
    """
    live = [state.report for state in states if not state.lost and not state.report.draining]
    stable = [report.servable_capacity for report in live if report.cohort is Cohort.STABLE]
    canary = sum(report.servable_capacity for report in live if report.cohort is Cohort.CANARY)
    plan = EXPEDITED_PLAN
    if stable and not canary:
        canary, plan = min(stable), plan.model_copy(update={"canary_replicas": 1})
    if not canary or canary >= sum(stable):
        return plan
    share = max(1, math.floor(100 * canary / (canary + sum(stable))))
    return plan.model_copy(
        update={
            "stages": (Stage(weight=share),),
            "promotion": Promotion.IN_PLACE,
            "wave": min(len(stable), MAX_WAVE),
        }
    )


def way_back_now(parachute: Parachute, states: Sequence[InstanceState]) -> str:
    """Return what going back costs under a parachute as its instances are now, as far as the registry knows.

    A rollback counts the pods that the cluster lacks as well.
    """
    by_id = {state.report.instance_id: state for state in states}
    problems = (unready(name, by_id.get(name), parachute.revision) for name in parachute.instances)
    missing = [problem for problem in problems if problem is not None]
    return f"{parachute.otherwise}: {'; '.join(missing)}" if missing else "instant"


def going_back_key(release_id: str) -> str:
    """Return the request key by which a release that goes back to an earlier artifact is known."""
    return f"{_GOING_BACK}{release_id}"


def is_going_back(request_key: str | None) -> bool:
    """Whether a request key is that of a release that goes back to an earlier artifact."""
    return (request_key or "").startswith(_GOING_BACK)


def promoted_last(records: Sequence[ReleaseRecord], *, default: str) -> str:
    """Return the artifact that was promoted last; records come newest first."""
    promoted = (record.artifact_id for record in records if record.outcome is Outcome.PROMOTED)
    return next(promoted, default)


def released_last(records: Sequence[ReleaseRecord]) -> str | None:
    """Return the artifact of the newest release, ended or not: what people would leave in an emergency."""
    return records[0].artifact_id if records else None


def never_promoted(records: Sequence[ReleaseRecord], current: str) -> bool:
    """Whether stable's target was left there by a release that did not promote it; newest come first.

    Without any promotion there is no other artifact, so the first one may stay.
    """
    return promoted_last(records, default=current) != current


def failed_return(records: Sequence[ReleaseRecord], current: str) -> bool:
    """Whether going back to `current`, stable's target, failed the last time; records come newest first."""
    newest = next((record for record in records if record.artifact_id == current), None)
    if newest is None or newest.outcome in (None, Outcome.PROMOTED):
        return False
    return _goes_back(newest)


def unfinished_return(records: Sequence[ReleaseRecord], current: str) -> bool:
    """Whether stable's target was left there by going back that did not get through; newest come first."""
    return never_promoted(records, current) and failed_return(records, current)


def serving_release(
    records: Sequence[ReleaseRecord], stable: str | None, artifact_id: str
) -> ReleaseRecord | None:
    """Return the release by which an artifact serves now; None when it does not, or one is under way.

    Records come newest first, `stable` is its target's artifact.
    """
    if stable != artifact_id or any(record.outcome is None for record in records):
        return None
    newest = next((record for record in records if record.outcome is Outcome.PROMOTED), None)
    return newest if newest is not None and newest.artifact_id == artifact_id else None


def is_settled(records: Sequence[ReleaseRecord], current: str) -> bool:
    """Whether traffic was taken back already, so that going back again would leave the healthy artifact.

    Records come newest first, `current` is stable's target; an attempt to go back that did not get through
    settles nothing.
    """
    tried = (
        record
        for record in records
        if record.outcome is Outcome.PROMOTED or not is_going_back(record.request_key)
    )
    newest = next(tried, None)
    if newest is None or newest.outcome is None:
        return newest is None
    if unfinished_return(records, current):
        return False
    if newest.outcome is Outcome.PROMOTED:
        return _goes_back(newest)
    return not never_promoted(records, current)


def previous_artifact(records: Sequence[ReleaseRecord], current: str) -> str:
    """Return the artifact that was promoted before `current`; records come newest first.

    What was gone back from does not count. Raises `UnknownArtifact` when there is none.
    """
    kept = _kept(records)
    if current in kept:
        kept = kept[: len(kept) - kept[::-1].index(current)]
    earlier = next((artifact_id for artifact_id in reversed(kept) if artifact_id != current), None)
    if earlier is None:
        raise UnknownArtifact(
            f"nothing was promoted before {current}; name the artifact to go back to with --to"
        )
    return earlier


def abandoned_release(records: Sequence[ReleaseRecord]) -> ReleaseRecord | None:
    """Return the release that ended without an outcome, by termination; records come newest first.

    To be asked only while no release runs: it left traffic, targets and the lock as they were.
    """
    return records[0] if records and records[0].outcome is None else None


def artifact_to_go_back_to(records: Sequence[ReleaseRecord], current: str) -> str:
    """Return the last healthy artifact while `current` is stable's target; records come newest first.

    After a release that was terminated, that is what was promoted last, wherever the release had come to;
    where going back did not get through, what it went back to. Raises `UnknownArtifact` when there is none.
    """
    if abandoned_release(records) is None:
        if unfinished_return(records, current):
            return current
        return previous_artifact(records, current)
    promoted = promoted_last(records, default="")
    if not promoted:
        raise UnknownArtifact("nothing was promoted yet; name the artifact to go back to with --to")
    return promoted


def next_way_back(records: Sequence[ReleaseRecord], current: str) -> str | None:
    """Return what `release rollback` goes back to while no release runs; None where it does nothing.

    Records come newest first, `current` is stable's target.
    """
    if is_settled(records, current):
        return None
    try:
        return artifact_to_go_back_to(records, current)
    except UnknownArtifact:
        return None


def _goes_back(record: ReleaseRecord) -> bool:
    return is_going_back(record.request_key)


def _kept(records: Sequence[ReleaseRecord]) -> list[str]:
    """Return what was promoted and not gone back from since, oldest first."""
    kept: list[str] = []
    for record in reversed(records):
        if record.outcome is not Outcome.PROMOTED:
            continue
        if _goes_back(record) and record.artifact_id in kept:
            kept = kept[: len(kept) - kept[::-1].index(record.artifact_id)]
        else:
            kept.append(record.artifact_id)
    return kept


def require_serving(wanted: str | None, *serving: str | None) -> None:
    """Raise `Conflict` unless `wanted` is what serves or is being released; None means anything."""
    if wanted is not None and wanted not in serving:
        known = ", ".join(sorted({artifact for artifact in serving if artifact})) or "nothing"
        raise Conflict(f"{wanted} does not serve, {known} does; nothing was changed")
