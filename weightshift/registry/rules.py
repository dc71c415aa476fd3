"""What the registry decides, apart from where it keeps its rows. Pure; shared by every store."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.contracts.release import Admission, Completion, ReleaseRecord, ReleaseRequest
from weightshift.contracts.target import Publication, Target
from weightshift.errors import (
    ArtifactConflict,
    ArtifactNotReady,
    Conflict,
    OperationConflict,
    ReleaseActive,
    RevisionConflict,
    StaleFence,
    UnknownArtifact,
)
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT, Entry

FORGET_INSTANCE_AFTER = timedelta(days=1)
"""How long a silent instance stays in the list."""


def known_artifact(record: ArtifactRecord | None, *, model: str, artifact_id: str) -> ArtifactRecord:
    """Return the record. Raises `UnknownArtifact` when there is none."""
    if record is None:
        raise UnknownArtifact(f"The registry knows no artifact {artifact_id} of {model}; push it first.")
    return record


def ready_artifact(record: ArtifactRecord | None, *, model: str, artifact_id: str) -> ArtifactRecord:
    """Return a record that may be published. Raises `UnknownArtifact`, `ArtifactNotReady`."""
    known = known_artifact(record, model=model, artifact_id=artifact_id)
    if known.state is ArtifactState.READY:
        return known
    step = "push another" if known.state is ArtifactState.REJECTED else "approve it first"
    raise ArtifactNotReady(f"Artifact {artifact_id} of {model} is {known.state}; {step}.")


def same_artifact(stored: ArtifactRecord, record: ArtifactRecord) -> ArtifactRecord:
    """Return the stored record for a repeated registration. Raises `ArtifactConflict` for other content."""
    if (stored.manifest_sha256, stored.feature_schema) != (record.manifest_sha256, record.feature_schema):
        raise ArtifactConflict(
            f"Artifact id {record.artifact_id} of {record.model} is taken by manifest "
            f"{stored.manifest_sha256[:12]}; register the new content under another id."
        )
    return stored


def approvable(record: ArtifactRecord) -> bool:
    """Whether approval changes anything. Raises `Conflict` for a rejected artifact."""
    if record.state is ArtifactState.REJECTED:
        raise Conflict(
            f"Artifact {record.artifact_id} of {record.model} was rejected; push it again under another id."
        )
    return record.state is ArtifactState.PENDING


def artifact_entry(record: ArtifactRecord, *, step: str, operator: str, reason: str = "") -> Entry:
    """Return the audit entry for one step in an artifact's life; each step happens at most once."""
    return Entry(
        service=Service(model=record.model, environment=ARTIFACT_ENVIRONMENT),
        operation_id=f"artifact:{record.model}:{record.artifact_id}:{step}",
        step=f"artifact-{step}",
        operator=operator,
        summary=reason or f"artifact {record.artifact_id} {step}",
        data=record.model_dump(mode="json"),
    )


def repeated_publication(publication: Publication, recorded: AuditRow) -> Target:
    """Return the first result of an operation. Raises `OperationConflict` when it was a different one."""
    first = recorded.data.get("publication")
    if first is None or Publication.model_validate(first) != publication:
        raise OperationConflict(
            f"Operation {publication.operation_id} was already used for something else; use a new id."
        )
    return Target.model_validate(recorded.data["target"])


def check_publication(
    publication: Publication, *, current: Target | None, cohort_fence: Fence | None, last_epoch: int
) -> None:
    """Refuse a command that comes too late. Raises `StaleFence`, `RevisionConflict`.

    An admitted release outdates every command of the releases before it, also where it has not
    published yet: hence `last_epoch` beside the newest fence stored for the cohort.
    """
    newest = max(cohort_fence or Fence(epoch=0, sequence=0), Fence(epoch=last_epoch, sequence=0))
    if publication.fence < newest:
        raise StaleFence(
            f"Fence {publication.fence} is older than {newest} on {publication.service} "
            f"{publication.cohort}; nothing was changed."
        )
    revision = current.revision if current else 0
    if publication.expected_revision not in (None, revision):
        held = f"revision {revision} ({current.artifact_id})" if current else "nothing (revision 0)"
        raise RevisionConflict(
            f"{publication.service} {publication.cohort} holds {held}, not revision "
            f"{publication.expected_revision}; read it again and decide."
        )


def next_target(
    publication: Publication,
    *,
    artifact: ArtifactRecord,
    current: Target | None,
    revision: int,
    updated_at: datetime,
) -> Target:
    """Return the target a publication leads to."""
    floor = current.serve_floor if current else 0
    return Target(
        service=publication.service,
        cohort=publication.cohort,
        revision=revision,
        artifact_id=publication.artifact_id,
        manifest_sha256=artifact.manifest_sha256,
        feature_schema=artifact.feature_schema,
        serve_floor=revision if publication.raise_serve_floor else floor,
        updated_at=updated_at,
    )


def publication_entry(publication: Publication, target: Target) -> Entry:
    """Return the audit entry of a publication, from which a repeat is answered."""
    return Entry(
        service=publication.service,
        operation_id=publication.operation_id,
        release_id=publication.release_id,
        step="publish",
        operator=publication.operator,
        summary=f"{target.cohort} -> revision {target.revision} ({target.artifact_id})",
        data={"publication": publication.model_dump(mode="json"), "target": target.model_dump(mode="json")},
    )


def repeated_admission(request: ReleaseRequest, recorded: ReleaseRecord) -> int:
    """Return the epoch of the first admission. Raises `OperationConflict` for another request."""
    if recorded.request_digest != request.digest():
        raise OperationConflict(
            f"Release id {request.release_id} was already used for another request; use a new id."
        )
    return recorded.epoch


def check_admission(
    request: ReleaseRequest, *, active: ReleaseRecord | None, keyed: ReleaseRecord | None
) -> None:
    """Refuse a release that may not start. Raises `ReleaseActive`, `Conflict`.

    `active` holds the service's lock; `keyed` is the release that used the same request key.
    """
    if keyed and keyed.request_digest != request.digest():
        raise Conflict(
            f"Request key {request.request_key} was used for another request by release "
            f"{keyed.release_id}; use a new key."
        )
    if active:
        raise ReleaseActive(
            f"Release {active.release_id} by {active.operator} is active for {request.service}; "
            "wait for it or roll it back."
        )
    if keyed:
        raise Conflict(
            f"Request key {request.request_key} already ran as release {keyed.release_id}, which ended as "
            f"{keyed.outcome}; use a new key to run it again."
        )


def admission_entry(admission: Admission, *, epoch: int) -> Entry:
    """Return the audit entry of an admission."""
    request = admission.request
    return Entry(
        service=request.service,
        operation_id=f"admit:{request.release_id}",
        release_id=request.release_id,
        step="admit",
        operator=request.operator,
        summary=request.reason or f"release of {request.artifact_id} admitted",
        data={"epoch": epoch, "run_id": admission.run_id, "request": request.model_dump(mode="json")},
    )


def completion_entry(completion: Completion, *, operator: str) -> Entry:
    """Return the audit entry of a release's end."""
    return Entry(
        service=completion.service,
        operation_id=f"complete:{completion.release_id}",
        release_id=completion.release_id,
        step="complete",
        operator=operator,
        summary=f"{completion.outcome}: {completion.reason}",
        data={"outcome": completion.outcome.value, "fence": completion.fence.model_dump(mode="json")},
    )


def instance_states(
    reports: Iterable[tuple[InstanceReport, float]], *, lost_after: timedelta
) -> tuple[InstanceState, ...]:
    """Return the instances with their age in seconds.

    One that had announced its end (`draining`) before it fell silent has left; it is not lost.
    """
    limit = lost_after.total_seconds()
    return tuple(
        InstanceState(report=report, age_seconds=age, lost=age > limit)
        for report, age in reports
        if age <= limit or (not report.draining and age <= FORGET_INSTANCE_AFTER.total_seconds())
    )
