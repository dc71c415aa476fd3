"""What the registry decides about artifacts. Pure; shared by every store."""

from collections.abc import Iterable

from ulid import ULID

from weightshift.contracts.approval import ApprovalPolicy, ArtifactUse, RejectedArtifact
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.contracts.target import Target
from weightshift.errors import ArtifactConflict, ArtifactNotReady, Conflict, UnknownArtifact
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT, Entry


def known_artifact(record: ArtifactRecord | None, *, model: str, artifact_id: str) -> ArtifactRecord:
    """Return the record. Raises `UnknownArtifact` when there is none."""
    if record is None:
        raise UnknownArtifact(f"The registry knows no artifact {artifact_id} of {model}; push it first.")
    return record


def ready_artifact(
    record: ArtifactRecord | None, *, model: str, artifact_id: str, must_be_signed: bool
) -> ArtifactRecord:
    """Return a record that may be published. Raises `UnknownArtifact`, `ArtifactNotReady`."""
    known = known_artifact(record, model=model, artifact_id=artifact_id)
    if known.state is ArtifactState.READY:
        if must_be_signed and known.signature_sha256 is None:
            raise ArtifactNotReady(f"Artifact {artifact_id} of {model} is unsigned; push it with a key.")
        return known
    step = "push another" if known.state is ArtifactState.REJECTED else "approve it first"
    raise ArtifactNotReady(f"Artifact {artifact_id} of {model} is {known.state}; {step}.")


def same_artifact(stored: ArtifactRecord, record: ArtifactRecord) -> ArtifactRecord:
    """Return the stored record for a repeated registration, with the signature that was pushed last.

    Raises `ArtifactConflict` for other content.
    """
    if (stored.manifest_sha256, stored.feature_schema) != (record.manifest_sha256, record.feature_schema):
        raise ArtifactConflict(
            f"Artifact id {record.artifact_id} of {record.model} is taken by manifest "
            f"{stored.manifest_sha256[:12]}; register the new content under another id."
        )
    if record.signature_sha256 is None:
        return stored
    return stored.model_copy(update={"signature_sha256": record.signature_sha256})


def approved(record: ArtifactRecord, *, operator: str, policy: ApprovalPolicy) -> ArtifactRecord:
    """Return the record after one person's approval, which may change nothing.

    Raises `Conflict` for a rejected artifact.
    """
    if record.state is ArtifactState.REJECTED:
        raise Conflict(
            f"Artifact {record.artifact_id} of {record.model} was rejected; push it again under another id."
        )
    if record.state is ArtifactState.READY:
        return record
    approvers = record.approvers if operator in record.approvers else (*record.approvers, operator)
    pusher_alone = approvers == (record.pushed_by,) and not policy.pusher_may_approve
    is_enough = len(approvers) >= policy.required and not pusher_alone
    state = ArtifactState.READY if is_enough else ArtifactState.PENDING
    return record.model_copy(update={"approvers": approvers, "state": state})


def rejected(record: ArtifactRecord, uses: Iterable[ArtifactUse]) -> RejectedArtifact:
    """Return the rejected artifact with where it is in use."""
    fields = record.model_dump() | {"state": ArtifactState.REJECTED, "in_use": tuple(uses)}
    return RejectedArtifact.model_validate(fields)


def artifact_uses(
    artifact_id: str, targets: Iterable[Target], reports: Iterable[InstanceReport]
) -> tuple[ArtifactUse, ...]:
    """Return where an artifact is desired or served, among the targets and reports of its model."""
    desired = {
        (target.service, target.cohort): target.revision
        for target in targets
        if target.artifact_id == artifact_id
    }
    serving: dict[tuple[Service, Cohort], list[str]] = {}
    for report in reports:
        if report.actual is not None and report.actual.artifact_id == artifact_id:
            serving.setdefault((report.service, report.cohort), []).append(report.instance_id)
    return tuple(
        ArtifactUse(
            service=service,
            cohort=cohort,
            desired_revision=desired.get((service, cohort)),
            instance_ids=tuple(sorted(serving.get((service, cohort), ()))),
        )
        for service, cohort in sorted(desired.keys() | serving.keys(), key=str)
    )


def registration_entry(record: ArtifactRecord) -> Entry:
    """Return the audit entry of a new artifact."""
    return _entry(record, "registered", operator=record.pushed_by)


def signature_entry(record: ArtifactRecord, *, previous: str | None, operator: str) -> Entry:
    """Return the audit entry of an artifact that was signed again, with another key."""
    # Never the same twice: a signature may come back after another one.
    return _entry(
        record, "signed", operator=operator, detail=f":{previous}:{record.signature_sha256}:{ULID()}"
    )


def approval_entry(record: ArtifactRecord, *, operator: str) -> Entry:
    """Return the audit entry of one person's approval; `record` is as the approval left it."""
    return _entry(record, "approved", operator=operator, detail=f":{operator}:{record.state}")


def approval_operations(record: ArtifactRecord) -> tuple[str, ...]:
    """Return the operation ids under which its approvals are recorded: each left it in some state."""
    return tuple(
        _operation_id(record, "approved", f":{operator}:{state}")
        for operator in record.approvers
        for state in (ArtifactState.PENDING, ArtifactState.READY)
    )


def rejection_entry(record: RejectedArtifact, *, operator: str, reason: str) -> Entry:
    """Return the audit entry of a rejection."""
    return _entry(record, "rejected", operator=operator, summary=reason)


def _entry(record: ArtifactRecord, step: str, *, operator: str, detail: str = "", summary: str = "") -> Entry:
    return Entry(
        service=Service(model=record.model, environment=ARTIFACT_ENVIRONMENT),
        operation_id=_operation_id(record, step, detail),
        step=f"artifact-{step}",
        operator=operator,
        summary=summary or f"artifact {record.artifact_id} {step}, {record.state}",
        data=record.model_dump(mode="json"),
    )


def _operation_id(record: ArtifactRecord, step: str, detail: str) -> str:
    return f"artifact:{record.model}:{record.artifact_id}:{step}{detail}"
