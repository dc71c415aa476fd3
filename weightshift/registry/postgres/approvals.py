"""The approvals of releases."""

from datetime import datetime

import asyncpg

from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.contracts.identity import Service
from weightshift.registry import rules
from weightshift.registry.postgres import audit
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import service_of
from weightshift.registry.sql import QUERIES


async def record(connection: Connection, request: ApprovalRequest, *, operator: str) -> Approval:
    """Record one person's approval, or return the first result of a repeat. Raises `OperationConflict`."""
    service = request.service
    await audit.lock(connection, service.environment)
    if first := await audit.find(connection, service.environment, rules.approval_operation(request)):
        return rules.repeated_approval(request, operator, first)
    now: datetime = await connection.fetchval(QUERIES["now"])
    approval = rules.next_approval(request, operator=operator, now=now)
    await connection.execute(
        QUERIES["insert_approval"],
        approval.approval_id,
        service.model,
        service.environment,
        approval.release_id,
        operator,
        approval.reason,
        now,
        approval.artifact_id,
        approval.expires_at,
    )
    await audit.append(connection, rules.approval_entry(request, approval))
    return approval


async def read(connection: Connection, approval_id: str) -> Approval:
    """Return one approval. Raises `UnknownApproval`."""
    known = rules.is_approval_id(approval_id)
    row = await connection.fetchrow(QUERIES["select_approval"], approval_id) if known else None
    return rules.known_approval(_approval(row) if row else None, approval_id)


async def of_release(connection: Connection, service: Service, release_id: str) -> list[Approval]:
    """Return the approvals of a service's release, oldest first."""
    rows = await connection.fetch(
        QUERIES["select_approvals_of_release"], service.model, service.environment, release_id
    )
    return [_approval(row) for row in rows]


def _approval(row: asyncpg.Record) -> Approval:
    return Approval(
        approval_id=row["approval_id"],
        service=service_of(row),
        release_id=row["release_id"],
        operator=row["operator"],
        reason=row["reason"],
        created_at=row["created_at"],
        artifact_id=row["artifact_id"],
        expires_at=row["expires_at"],
    )
