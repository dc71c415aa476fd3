"""What a release leaves behind: one row per step, in the audit chain."""

from datetime import datetime
from typing import Any

from pydantic import Field

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Service


class Evidence(Message):
    """One decided or observed fact of a release. `operation_id` makes a repeat harmless."""

    service: Service
    release_id: str
    operation_id: str
    step: str
    operator: str = ""
    summary: str
    data: dict[str, Any] = Field(default_factory=dict)


class AuditRow(Message):
    """One row of the append-only chain; `hash` covers the row and `previous_hash`."""

    sequence: int
    service: Service
    operation_id: str
    release_id: str | None
    step: str
    operator: str
    summary: str
    data: dict[str, Any]
    recorded_at: datetime
    previous_hash: str
    hash: str
