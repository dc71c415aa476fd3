"""The artifacts' rows."""

import asyncpg

from weightshift.contracts.approval import ApprovalPolicy, ArtifactUse, RejectedArtifact
from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.health import Incident
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.registry import artifact_rules as rules
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT
from weightshift.registry.fleet_rules import FORGET_INSTANCE_AFTER
from weightshift.registry.postgres import audit, health
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import target_of
from weightshift.registry.sql import QUERIES


async def register(connection: Connection, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
    """Insert an artifact as pending, or return the one that is there. Raises `ArtifactConflict`."""
    inserted = await connection.fetchrow(
        QUERIES["insert_artifact"],
        record.model,
        record.artifact_id,
        record.manifest_uri,
        record.manifest_sha256,
        record.feature_schema,
        operator,
        record.signature_sha256,
    )
    if inserted is None:
        return await _register_again(connection, record, operator=operator)
    stored = _artifact(inserted)
    await audit.append(connection, rules.registration_entry(stored))
    return stored


async def approve(
    connection: Connection, model: str, artifact_id: str, *, operator: str, policy: ApprovalPolicy
) -> ArtifactRecord:
    """Count one person's approval. Raises `UnknownArtifact`, `Conflict`."""
    record = await _lock(connection, model, artifact_id)
    approved = rules.approved(record, operator=operator, policy=policy)
    if approved != record:
        await _store(connection, approved)
        await audit.append(connection, rules.approval_entry(approved, operator=operator))
    return approved


async def reject(
    connection: Connection, model: str, artifact_id: str, *, operator: str, reason: str
) -> RejectedArtifact:
    """Move to rejected, and return where the artifact is in use. Raises `UnknownArtifact`."""
    record = await _lock(connection, model, artifact_id)
    rejected = rules.rejected(record, await _uses(connection, model, artifact_id))
    if record.state is not ArtifactState.REJECTED:
        await _store(connection, rejected)
        await audit.append(connection, rules.rejection_entry(rejected, operator=operator, reason=reason))
        for service in {use.service for use in rejected.in_use}:
            await health.count(connection, service, Incident.REJECTED_IN_USE)
    return rejected


async def read(connection: Connection, model: str, artifact_id: str) -> ArtifactRecord:
    """Return one artifact. Raises `UnknownArtifact`."""
    record = await _fetch(connection, "select_artifact", model, artifact_id)
    return rules.known_artifact(record, model=model, artifact_id=artifact_id)


async def hold_ready(
    connection: Connection, model: str, artifact_id: str, *, must_be_signed: bool
) -> ArtifactRecord:
    """Return a ready artifact, which stays so until the transaction ends.

    Raises `UnknownArtifact`, `ArtifactNotReady`.
    """
    record = await _fetch(connection, "share_artifact", model, artifact_id)
    return rules.ready_artifact(record, model=model, artifact_id=artifact_id, must_be_signed=must_be_signed)


async def approvals(connection: Connection, record: ArtifactRecord) -> list[AuditRow]:
    """Return the audit rows of the approvals that an artifact was given."""
    operations = rules.approval_operations(record)
    found = [await audit.find(connection, ARTIFACT_ENVIRONMENT, operation) for operation in operations]
    return [row for row in found if row is not None]


async def read_all(connection: Connection, model: str) -> tuple[ArtifactRecord, ...]:
    """Return a model's artifacts, newest first."""
    return tuple(_artifact(record) for record in await connection.fetch(QUERIES["select_artifacts"], model))


async def _register_again(connection: Connection, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
    stored = await _lock(connection, record.model, record.artifact_id)
    same = rules.same_artifact(stored, record)
    if same != stored:
        key = same.model, same.artifact_id, same.signature_sha256
        await connection.execute(QUERIES["set_artifact_signature"], *key)
        previous = stored.signature_sha256
        await audit.append(connection, rules.signature_entry(same, previous=previous, operator=operator))
    return same


async def _fetch(connection: Connection, query: str, model: str, artifact_id: str) -> ArtifactRecord | None:
    record = await connection.fetchrow(QUERIES[query], model, artifact_id)
    return _artifact(record) if record else None


async def _lock(connection: Connection, model: str, artifact_id: str) -> ArtifactRecord:
    record = await _fetch(connection, "lock_artifact", model, artifact_id)
    return rules.known_artifact(record, model=model, artifact_id=artifact_id)


async def _store(connection: Connection, record: ArtifactRecord) -> None:
    await connection.execute(
        QUERIES["set_artifact_state"],
        record.model,
        record.artifact_id,
        record.state.value,
        list(record.approvers),
    )


async def _uses(connection: Connection, model: str, artifact_id: str) -> tuple[ArtifactUse, ...]:
    targets = await connection.fetch(QUERIES["select_targets_of_artifact"], model, artifact_id)
    reports = await connection.fetch(
        QUERIES["select_reports_of_artifact"], model, artifact_id, FORGET_INSTANCE_AFTER
    )
    return rules.artifact_uses(
        artifact_id,
        (target_of(record) for record in targets),
        (InstanceReport.model_validate_json(record["report"]) for record in reports),
    )


def _artifact(record: asyncpg.Record) -> ArtifactRecord:
    return ArtifactRecord(
        model=record["model_name"],
        artifact_id=record["artifact_id"],
        manifest_uri=record["manifest_uri"],
        manifest_sha256=record["manifest_sha256"],
        feature_schema=record["feature_schema"],
        state=ArtifactState(record["state"]),
        created_at=record["created_at"],
        pushed_by=record["pushed_by"],
        approvers=tuple(record["approvers"]),
        signature_sha256=record["signature_sha256"],
    )
