"""The audit chain's rows."""

from typing import Any

import asyncpg
import rfc8785
from pydantic import TypeAdapter

from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow
from weightshift.errors import OperationConflict
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, chained, head_of, unreadable
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import service_of
from weightshift.registry.sql import QUERIES

_DATA = TypeAdapter(dict[str, Any])


async def append(connection: Connection, entry: Entry) -> AuditRow:
    """Add a row to its environment's chain. Raises `OperationConflict` for a used operation id."""
    environment = entry.service.environment
    await lock(connection, environment)
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


async def lock(connection: Connection, environment: str) -> None:
    """Keep a chain to this transaction until its end: the next writer must see its rows to continue."""
    await connection.execute(QUERIES["lock_audit_chain"], environment)


async def append_once(connection: Connection, entry: Entry) -> None:
    """Add a row unless its operation id is recorded already."""
    await lock(connection, entry.service.environment)
    if await find(connection, entry.service.environment, entry.operation_id) is None:
        await append(connection, entry)


async def find(connection: Connection, environment: str, operation_id: str) -> AuditRow | None:
    """Return the row of an operation."""
    record = await connection.fetchrow(QUERIES["select_audit_operation"], environment, operation_id)
    return _row(record) if record else None


async def read_page(connection: Connection, query: AuditQuery) -> tuple[AuditRow, ...]:
    """Return the first rows that a query selects, oldest first."""
    records = await connection.fetch(
        QUERIES["select_audit_page"],
        query.environment,
        query.after,
        query.model,
        query.release_id,
        query.operator,
        query.since,
        query.until,
        query.limit,
    )
    return tuple(_row(record) for record in records)


async def read_head(connection: Connection, environment: str) -> AuditHead:
    """Return the place and the hash of a chain's newest row."""
    record = await connection.fetchrow(QUERIES["select_newest_audit"], environment)
    return head_of(environment, _row(record) if record else None)


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
    """Return a row; one that somebody has made unreadable must not hide the others, or its own number."""
    try:
        return _readable(record)
    except ValueError:
        return unreadable(
            record["environment"],
            sequence=record["sequence"],
            previous_hash=record["previous_hash"],
            hash_=record["hash"],
        )


def _readable(record: asyncpg.Record) -> AuditRow:
    return AuditRow(
        sequence=record["sequence"],
        service=service_of(record),
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
