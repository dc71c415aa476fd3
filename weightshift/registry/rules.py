"""What the registry decides about targets and releases. Pure; shared by every store."""

import re
from collections.abc import Sequence
from datetime import datetime

from ulid import ULID

from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.contracts.base import clean_text
from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.health import Incident
from weightshift.contracts.identity import Fence
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Completion, Outcome, ReleaseRecord, ReleaseRequest
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.errors import (
    Conflict,
    OperationConflict,
    ReleaseActive,
    RevisionConflict,
    RevisionReused,
    StaleFence,
    UnknownApproval,
)
from weightshift.registry.chain import Entry

# A ULID, which is what `next_approval` makes.
_APPROVAL_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_INCIDENTS = {
    RevisionConflict: Incident.PUBLISH_CONFLICT,
    StaleFence: Incident.STALE_FENCE,
    RevisionReused: Incident.REVISION_REUSED,
}


def incident_of(error: Conflict) -> Incident | None:
    """Return what a refused command counts as, if an operator should hear of it."""
    return _INCIDENTS.get(type(error))


def is_overtaken(fence: Fence, *, newest: Fence | None, last_epoch: int) -> bool:
    """Whether a repeated command comes after a newer one: from a worker that was thought dead.

    It is answered as the first time and changes nothing, but an operator should hear of it.
    """
    return fence < max(newest or fence, Fence(epoch=last_epoch, sequence=0))


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
        requires_grant=publication.requires_grant,
        updated_at=updated_at,
    )


def renewed(targets: Targets, authoriser: ReleaseAuthoriser | None, *, now: datetime) -> Targets:
    """Return targets whose authorisations a new instance may still accept."""
    if authoriser is None:
        return targets
    return Targets(
        stable=targets.stable and authoriser.renew(targets.stable, now=now),
        canary=targets.canary and authoriser.renew(targets.canary, now=now),
    )


def publication_entry(
    publication: Publication,
    target: Target,
    *,
    previous: Target | None,
    artifact: ArtifactRecord,
    artifact_approvals: Sequence[AuditRow],
    approvals: Sequence[Approval],
) -> Entry:
    """Return the audit entry of a publication, from which a repeat is answered.

    `artifact_approvals` are the rows of the artifact's approvals: it says when each person gave theirs.
    """
    old = f"revision {previous.revision} ({previous.artifact_id})" if previous else "nothing"
    return Entry(
        service=publication.service,
        operation_id=publication.operation_id,
        release_id=publication.release_id,
        step="publish",
        operator=publication.operator,
        summary=f"{target.cohort} from {old} to revision {target.revision} ({target.artifact_id})",
        data={
            "publication": publication.model_dump(mode="json"),
            "target": target.model_dump(mode="json"),
            "previous": previous.model_dump(mode="json") if previous else None,
            "artifact_approvers": artifact.approvers,
            "artifact_approved_at": {row.operator: row.recorded_at.isoformat() for row in artifact_approvals},
            "approvals": [approval.model_dump(mode="json") for approval in approvals],
        },
    )


def repeated_admission(admission: Admission, recorded: ReleaseRecord) -> int:
    """Return the epoch of the first admission.

    Raises `OperationConflict` for another request, and once another workflow run has used the release id:
    its commands would be taken for repeats of that run's.
    """
    request = admission.request
    if recorded.request_digest != request.digest() or recorded.run_id not in ("", admission.run_id):
        raise OperationConflict(
            f"Release id {request.release_id} was already used for another request or run; use a new id."
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


def taken_meanwhile(request: ReleaseRequest, *, is_key: bool) -> Conflict:
    """Return the refusal of a release whose request key, or else id, another service has just taken."""
    if is_key:
        return Conflict(
            f"Request key {request.request_key} was used for another request meanwhile; use a new key."
        )
    return OperationConflict(f"Release id {request.release_id} was already used meanwhile; use a new id.")


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


def check_take_over(request: ReleaseRequest, *, active: ReleaseRecord | None, holder: str) -> None:
    """Raise `ReleaseActive` when the lock has gone to somebody else than the expected holder."""
    if active is not None and active.release_id != holder:
        raise ReleaseActive(
            f"The lock of {request.service} is held by release {active.release_id} of {active.operator} and "
            f"not by {holder}; read it again and decide."
        )


def abandonment(holder: ReleaseRecord, request: ReleaseRequest) -> Completion:
    """Return the end of a release that another one takes the lock from."""
    return Completion(
        service=holder.service,
        release_id=holder.release_id,
        outcome=Outcome.ABANDONED,
        reason=f"its workflow had ended; release {request.release_id} took the lock over",
        fence=Fence(epoch=holder.epoch, sequence=0),
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


def next_approval(request: ApprovalRequest, *, operator: str, now: datetime) -> Approval:
    """Return the approval a request leads to; `now` is by the registry's clock."""
    return Approval(
        approval_id=str(ULID()),
        service=request.service,
        release_id=request.release_id,
        artifact_id=request.artifact_id,
        expires_at=now + request.lifetime,
        operator=operator,
        reason=request.reason,
        created_at=now,
    )


def approval_operation(request: ApprovalRequest) -> str:
    """Return the operation id an approval is recorded under.

    The caller chose its own, and a chain has one space of ids for everybody: as it came, it could take
    the id of another model's publication, or of a rollback, before that one does.
    """
    return f"approval:{request.service.model}:{request.operation_id}"


def repeated_approval(request: ApprovalRequest, operator: str, recorded: AuditRow) -> Approval:
    """Return the first approval under an operation id. Raises `OperationConflict` for a different one."""
    if recorded.operator != operator or recorded.data.get("request") != request.model_dump(mode="json"):
        raise OperationConflict(
            f"Operation {request.operation_id} was already used for something else; use a new id."
        )
    return Approval.model_validate(recorded.data["approval"])


def is_approval_id(text: str) -> bool:
    """Whether the registry could have issued an approval under this id."""
    return _APPROVAL_ID.fullmatch(text) is not None


def known_approval(approval: Approval | None, approval_id: str) -> Approval:
    """Return the approval. Raises `UnknownApproval` when there is none."""
    if approval is None:
        name = clean_text(approval_id, longest=40)
        raise UnknownApproval(f"The registry issued no approval {name}; approve the release first.")
    return approval


def approval_entry(request: ApprovalRequest, approval: Approval) -> Entry:
    """Return the audit entry of an approval, from which a repeat is answered."""
    return Entry(
        service=request.service,
        operation_id=approval_operation(request),
        release_id=request.release_id,
        step="approve",
        operator=approval.operator,
        summary=request.reason or f"approval {approval.approval_id}",
        data={"request": request.model_dump(mode="json"), "approval": approval.model_dump(mode="json")},
    )
