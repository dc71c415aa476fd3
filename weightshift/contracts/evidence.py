"""What a release leaves behind: one row per step, in the audit chain."""

from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, Field

from weightshift.contracts.base import Message, Name
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


class AuditQuery(Message):
    """Which rows of one environment's chain to read: the first `limit` after sequence `after`."""

    environment: Name
    model: Name | None = None
    release_id: str | None = None
    operator: str | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    after: int = Field(default=0, ge=0)
    limit: int = Field(default=500, ge=1, le=1_000)


class AuditHead(Message):
    """The newest row of a chain. Kept outside, it shows later that nothing before it was changed or cut."""

    environment: Name
    sequence: int = Field(default=0, ge=0)
    hash: str


class Refusal(Message):
    """A request that an authenticated client sent and the registry refused as wrong or not allowed."""

    subject: str
    role: str
    method: str
    path: str
    error: str
