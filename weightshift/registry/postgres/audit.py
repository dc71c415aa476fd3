"""The audit chain's rows."""

from typing import Any

import asyncpg
import rfc8785
from pydantic import TypeAdapter

from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.identity import Service
from weightshift.errors import OperationConflict
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, chained
from weightshift.registry.postgres.database import Connection
from weightshift.registry.sql import QUERIES

_DATA = TypeAdapter(dict[str, Any])


async def append(connection: Connection, entry: Entry) -> AuditRow:
    """Add a row to its environment's chain. Raises `OperationConflict` for a used operation id."""
    environment = entry.service.environment
    # Until the end of the transaction: the next writer must see this row to continue from it.
    await connection.execute(QUERIES["lock_audit_chain"], environment)
    head = await connection.fetchrow(QUERIES["select_audit_head"], environment)
    assert head is not None  # noqa: S101 - the query always returns one row
    row = chained(
        entry,
        sequence=(head["sequence"] or 0) + 1,
        previous_hash=head["hash"] or FIRST_PREVIOUS_HASH,
        recorded_at=head["recorded_at"],
    )
    try:
        await _insert(connection, row)
    except asyncpg.UniqueViolationError as error:
        raise OperationConflict(
            f"Operation {entry.operation_id} was already used in {environment}; use a new id."
        ) from error
    return row


async def append_once(connection: Connection, entry: Entry) -> None:
    """Add a row unless its operation id is recorded already."""
    await connection.execute(QUERIES["lock_audit_chain"], entry.service.environment)
    if await find(connection, entry.service.environment, entry.operation_id) is None:
        await append(connection, entry)


async def find(connection: Connection, environment: str, operation_id: str) -> AuditRow | None:
    """Return the row of an operation."""
    record = await connection.fetchrow(QUERIES["select_audit_operation"], environment, operation_id)
    return _row(record) if record else None


async def read(connection: Connection, service: Service, release_id: str | None) -> tuple[AuditRow, ...]:
    """Return a service's rows, oldest first."""
    records = await connection.fetch(QUERIES["select_audit"], service.environment, service.model, release_id)
    return tuple(_row(record) for record in records)


async def _insert(connection: Connection, row: AuditRow) -> None:
    await connection.execute(
        QUERIES["insert_audit"],
        row.service.environment,
        row.sequence,
        row.service.model,
        row.operation_id,
        row.release_id,
        row.step,
        row.operator,
        row.summary,
        rfc8785.dumps(row.data).decode(),
        row.recorded_at,
        row.previous_hash,
        row.hash,
    )


def _row(record: asyncpg.Record) -> AuditRow:
    return AuditRow(
        sequence=record["sequence"],
        service=Service(model=record["model_name"], environment=record["environment"]),
        operation_id=record["operation_id"],
        release_id=record["release_id"],
        step=record["step"],
        operator=record["operator"],
        summary=record["summary"],
        data=_DATA.validate_json(record["data"]),
        recorded_at=record["recorded_at"],
        previous_hash=record["previous_hash"],
        hash=record["hash"],
    )
