"""Who may be admitted, by what the registry has recorded. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightshift.contracts.commands import InstanceRef
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import CPU, InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Outcome, ReleaseRecord, ReleaseRequest
from weightshift.contracts.target import Target, Targets
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import CanaryDiffers, Conflict, FeatureSchemaChanged, NoCanaryCapacity
from weightshift.way_back import (
    abandoned_release,
    is_going_back,
    never_promoted,
    next_way_back,
    promoted_last,
    unfinished_return,
)


@dataclass(frozen=True)
class LeftUnfinished:
    """What a release that ended without a word left on stable, and what was promoted before it."""

    service: Service
    unfinished: str
    healthy: str

    def refusal(self) -> Conflict:
        """Return why nothing else may start: its way back would be what was never promoted."""
        command = f"weightshift release rollback {self.service.model} -e {self.service.environment}"
        if self.healthy == self.unfinished:
            return Conflict(f"going back to {self.healthy} did not get through; finish it with `{command}`")
        return Conflict(
            f"stable was left with {self.unfinished}, which was never promoted; `{command}` returns to "
            f"{self.healthy} first, or with `--to {self.unfinished}` finishes what was begun"
        )

    def remark(self) -> str:
        """Return what to tell where nothing else is left to go back to."""
        return (
            f"the way back is {self.unfinished}, which was never promoted: {self.healthy}, which was "
            "promoted last, is rejected"
        )


def left_unfinished(
    request: ReleaseRequest, records: Sequence[ReleaseRecord], stable: Target | None
) -> LeftUnfinished | None:
    """Return what stands in a release's way on stable; nothing stands in the way of going back."""
    if stable is None or is_going_back(request.request_key):
        return None
    if not never_promoted(records, stable.artifact_id):
        return None
    healthy = promoted_last(records, default=stable.artifact_id)
    if unfinished_return(records, stable.artifact_id):
        healthy = stable.artifact_id
    return LeftUnfinished(request.service, unfinished=stable.artifact_id, healthy=healthy)


def require_idle_canary(
    request: ReleaseRequest, traffic: TrafficSplit, targets: Targets, records: Sequence[ReleaseRecord]
) -> None:
    """Refuse to publish a candidate under traffic that was left on the canary: no stage would judge it.

    Going back may: it is not judged, and the way out. So may what takes a terminated release over, which
    brings its split to stable first. Raises `Conflict`.
    """
    stable, service = targets.stable, request.service
    is_taken_over = abandoned_release(records) is not None
    if not traffic.canary or stable is None or is_taken_over or is_going_back(request.request_key):
        return
    held = targets.canary.artifact_id if targets.canary else "nothing"
    raise Conflict(
        f"the canary ({held}) carries {traffic.canary} % of the traffic, and a candidate would get it "
        f"unjudged; {_ways_off_canary(service, stable.artifact_id, records)}"
    )


def _ways_off_canary(service: Service, stable: str, records: Sequence[ReleaseRecord]) -> str:
    """Return the commands that lead on: none to a stable that may not serve its target, none in vain."""
    command = f"weightshift release rollback {service.model} -e {service.environment}"
    to_stable = f"take it to stable ({stable}) with `{command} --break-glass`"
    back = next_way_back(records, stable)
    go_back = f"go back to {back} with `{command}`" if back else f"go back with `{command} --to ARTIFACT`"
    if never_promoted(records, stable):
        return go_back
    return f"{to_stable}, or {go_back}" if back else to_stable


def schema_change(request: ReleaseRequest, candidate: ArtifactRecord, stable: Target | None) -> str | None:
    """Return what to tell where the candidate takes other requests than stable; None where it does not.

    Such a canary answers today's callers with 400, which no gate counts as a failure. Raises
    `FeatureSchemaChanged` unless the request says that callers are ready, or goes back to what served.
    """
    if stable is None or candidate.feature_schema == stable.feature_schema:
        return None
    change = (
        f"{stable.artifact_id} serves requests of the feature schema {stable.feature_schema}, and "
        f"{candidate.artifact_id} takes {candidate.feature_schema}"
    )
    if request.allow_schema_change or is_going_back(request.request_key):
        return f"{change}: callers have to be ready for it"
    raise FeatureSchemaChanged(f"{change}; add --allow-schema-change if its callers are ready")


def unlike_canary(states: Sequence[InstanceState]) -> str | None:
    """Return which stable instances on a GPU have no canary instance of their build and device.

    None where each has one. Only there an artifact that takes a process down does so before it serves:
    the canary dry-runs it first. On a CPU, and where an instance does not say, nothing is compared.
    """
    live = [state.report for state in states if not state.lost and not state.report.draining]
    tried = {_kind(report) for report in live if report.cohort is Cohort.CANARY}
    untried: dict[str, list[str]] = {}
    for report in live:
        is_on_gpu = report.device not in ("", CPU)
        if report.cohort is Cohort.STABLE and is_on_gpu and _kind(report) not in tried:
            untried.setdefault(_kind(report), []).append(report.instance_id)
    if not untried:
        return None
    named = "; ".join(f"{', '.join(sorted(names))} ({kind})" for kind, names in sorted(untried.items()))
    return f"no canary instance has the build and the GPU of stable's {named}"


def check_alike(
    request: ReleaseRequest,
    states: Sequence[InstanceState],
    stable: Target | None,
    records: Sequence[ReleaseRecord],
) -> str | None:
    """Return what to tell where nothing would try the artifact on stable's builds and GPUs first.

    Nothing serves yet before a first release, and the canary's pods may be scaled up later. Raises
    `CanaryDiffers` unless the release goes back to what was promoted before.
    """
    if stable is None or request.plan.canary_replicas is not None:
        return None
    promoted = {record.artifact_id for record in records if record.outcome is Outcome.PROMOTED}
    if not is_going_back(request.request_key) or request.artifact_id not in promoted:
        require_alike(states)
    return unlike_canary(states)


def require_alike(states: Sequence[InstanceState]) -> None:
    """Raise `CanaryDiffers` where `unlike_canary` finds an instance."""
    if (problem := unlike_canary(states)) is not None:
        raise CanaryDiffers(f"{problem}; start a canary instance like each of them, or make stable like it")


def _kind(report: InstanceReport) -> str:
    return f"{report.runtime_build or 'unknown build'} on {report.device}"


def holds_lock(admission: Admission, records: Sequence[ReleaseRecord]) -> bool:
    """Whether an earlier attempt of the same run has taken the lock already, so that this one is a repeat.

    Raises `Conflict` when it was refused after that: the lock is free again.
    """
    run = admission.request.release_id, admission.run_id
    mine = next((one for one in records if (one.release_id, one.run_id) == run), None)
    if mine is None or mine.outcome is None:
        return mine is not None
    raise Conflict(mine.reason)


def check_instances(request: ReleaseRequest, instances: Mapping[Cohort, Sequence[InstanceRef]]) -> None:
    """See that both cohorts report, or are about to be scaled up. Raises `NoCanaryCapacity`."""
    for cohort in Cohort:
        is_scaled_up = cohort is Cohort.CANARY and request.plan.canary_replicas is not None
        if not instances[cohort] and not is_scaled_up:
            raise NoCanaryCapacity(f"no {cohort} instance of {request.service} reports; start one first")
