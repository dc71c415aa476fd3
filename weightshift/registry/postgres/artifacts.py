"""The artifacts' rows."""

import asyncpg

from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.registry import rules
from weightshift.registry.postgres import audit
from weightshift.registry.postgres.database import Connection
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
    )
    if inserted is None:
        return rules.same_artifact(await read(connection, record.model, record.artifact_id), record)
    stored = _artifact(inserted)
    await audit.append(connection, rules.artifact_entry(stored, step="registered", operator=operator))
    return stored


async def approve(connection: Connection, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
    """Move pending to ready. Raises `UnknownArtifact`, `Conflict`."""
    record = await _fetch(connection, "lock_artifact", model, artifact_id)
    record = rules.known_artifact(record, model=model, artifact_id=artifact_id)
    if not rules.approvable(record):
        return record
    ready = await _set_state(connection, record, ArtifactState.READY)
    await audit.append(connection, rules.artifact_entry(ready, step="approved", operator=operator))
    return ready


async def reject(
    connection: Connection, model: str, artifact_id: str, *, operator: str, reason: str
) -> ArtifactRecord:
    """Move to rejected. Raises `UnknownArtifact`."""
    record = await _fetch(connection, "lock_artifact", model, artifact_id)
    record = rules.known_artifact(record, model=model, artifact_id=artifact_id)
    if record.state is ArtifactState.REJECTED:
        return record
    rejected = await _set_state(connection, record, ArtifactState.REJECTED)
    entry = rules.artifact_entry(rejected, step="rejected", operator=operator, reason=reason)
    await audit.append(connection, entry)
    return rejected


async def read(connection: Connection, model: str, artifact_id: str) -> ArtifactRecord:
    """Return one artifact. Raises `UnknownArtifact`."""
    record = await _fetch(connection, "select_artifact", model, artifact_id)
    return rules.known_artifact(record, model=model, artifact_id=artifact_id)


async def hold_ready(connection: Connection, model: str, artifact_id: str) -> ArtifactRecord:
    """Return a ready artifact, which stays so until the transaction ends.

    Raises `UnknownArtifact`, `ArtifactNotReady`.
    """
    record = await _fetch(connection, "share_artifact", model, artifact_id)
    return rules.ready_artifact(record, model=model, artifact_id=artifact_id)


async def read_all(connection: Connection, model: str) -> tuple[ArtifactRecord, ...]:
    """Return a model's artifacts, newest first."""
    return tuple(_artifact(record) for record in await connection.fetch(QUERIES["select_artifacts"], model))


async def _fetch(connection: Connection, query: str, model: str, artifact_id: str) -> ArtifactRecord | None:
    record = await connection.fetchrow(QUERIES[query], model, artifact_id)
    return _artifact(record) if record else None


async def _set_state(connection: Connection, record: ArtifactRecord, state: ArtifactState) -> ArtifactRecord:
    await connection.execute(QUERIES["set_artifact_state"], record.model, record.artifact_id, state.value)
    return record.model_copy(update={"state": state})


def _artifact(record: asyncpg.Record) -> ArtifactRecord:
    return ArtifactRecord(
        model=record["model_name"],
        artifact_id=record["artifact_id"],
        manifest_uri=record["manifest_uri"],
        manifest_sha256=record["manifest_sha256"],
        feature_schema=record["feature_schema"],
        state=ArtifactState(record["state"]),
        created_at=record["created_at"],
    )
