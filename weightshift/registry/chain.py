"""The audit chain: how a row is hashed, and how a reader finds a broken one. Pure."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import rfc8785
from pydantic import Field

from weightshift.contracts.base import Message
from weightshift.contracts.evidence import AuditRow, Evidence
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput

FIRST_PREVIOUS_HASH = "0" * 64
"""What the first row of a chain names as its predecessor."""

ARTIFACT_ENVIRONMENT = "artifacts"
"""The chain that holds what happened to artifacts, which belong to no environment."""


class Entry(Message):
    """What is to be recorded; the chain adds sequence, time and hashes."""

    service: Service
    operation_id: str
    step: str
    operator: str
    summary: str
    release_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of_evidence(cls, evidence: Evidence) -> "Entry":
        """Return the entry for one fact of a release."""
        return cls.model_validate(evidence.model_dump())


def chained(entry: Entry, *, sequence: int, previous_hash: str, recorded_at: datetime) -> AuditRow:
    """Return the row that continues a chain. Raises `InvalidInput` for data JSON cannot hold exactly."""
    # Through JSON once, so that the hash is over what a reader will get back.
    plain = Entry.model_validate_json(entry.model_dump_json())
    row = AuditRow(
        **plain.model_dump(), sequence=sequence, recorded_at=recorded_at, previous_hash=previous_hash, hash=""
    )
    return row.model_copy(update={"hash": row_hash(row)})


def row_hash(row: AuditRow) -> str:
    """Return the SHA-256 over everything in a row but its own hash."""
    try:
        canonical = rfc8785.dumps(row.model_dump(mode="json", exclude={"hash"}))
    except rfc8785.CanonicalizationError as error:
        raise InvalidInput(f"data of operation {row.operation_id} is not exact JSON: {error}.") from error
    return hashlib.sha256(canonical).hexdigest()


def broken_rows(rows: Iterable[AuditRow]) -> tuple[int, ...]:
    """Return the sequences of rows that were altered, or that do not follow the row before them.

    `rows` are of one environment, oldest first. Between rows whose sequences are not adjacent (a
    chain is shared by all models of an environment) only the rows themselves are checked.
    """
    broken = []
    previous: AuditRow | None = None
    for row in rows:
        first = row.sequence == 1
        adjacent = previous is not None and row.sequence == previous.sequence + 1
        expected = (
            FIRST_PREVIOUS_HASH if first else previous.hash if previous and adjacent else row.previous_hash
        )
        if row.previous_hash != expected or row_hash(row) != row.hash:
            broken.append(row.sequence)
        previous = row
    return tuple(broken)
