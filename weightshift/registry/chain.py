"""The audit chain: how a row is hashed, and how a reader finds a broken one. Pure."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import rfc8785
from pydantic import BeforeValidator, Field
from ulid import ULID

from weightshift.contracts.base import Message, ReportedText, clean_text
from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow, Evidence, Refusal
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput

LONGEST_SUMMARY = 4_000
FIRST_PREVIOUS_HASH = "0" * 64
"""What the first row of a chain names as its predecessor."""

ARTIFACT_ENVIRONMENT = "artifacts"
"""The chain that holds what happened to artifacts, which belong to no environment."""


REFUSAL_ENVIRONMENT = "access"
"""The chain that holds refused requests, whatever they asked for."""

UNREADABLE = "unreadable"
"""What a row is filed under that nobody can read any more."""

REFUSAL_MODEL = "registry"
"""What refused requests are filed under in their chain."""


def _cleaned_summary(value: object) -> object:
    """Keep what a database takes: a step must not be lost for an odd character in what it says."""
    return clean_text(value, longest=LONGEST_SUMMARY) if isinstance(value, str) else value


class Entry(Message):
    """What is to be recorded; the chain adds sequence, time and hashes."""

    service: Service
    operation_id: str
    step: str
    operator: ReportedText
    summary: Annotated[str, BeforeValidator(_cleaned_summary)]
    release_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of_evidence(cls, evidence: Evidence) -> "Entry":
        """Return the entry for one fact of a release."""
        return cls.model_validate(evidence.model_dump())

    @classmethod
    def of_refusal(cls, refusal: Refusal) -> "Entry":
        """Return the entry for one refused request."""
        return cls(
            service=Service(model=REFUSAL_MODEL, environment=REFUSAL_ENVIRONMENT),
            operation_id=f"refusal:{ULID()}",
            step="refuse",
            operator=refusal.subject,
            summary=f"{refusal.method} {refusal.path}: {refusal.error}",
            data=refusal.model_dump(mode="json"),
        )


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


def is_intact(row: AuditRow) -> bool:
    """Whether a row still is what its hash was computed over."""
    try:
        return row_hash(row) == row.hash
    except InvalidInput:
        return False  # no row was ever written with such data


def unreadable(environment: str, *, sequence: int, previous_hash: str, hash_: str) -> AuditRow:
    """Return what stands for a row that the registry cannot have written; its hash does not fit."""
    return AuditRow(
        sequence=sequence,
        service=Service(model=UNREADABLE, environment=environment),
        operation_id="",
        release_id=None,
        step=UNREADABLE,
        operator="",
        summary="this row was changed outside the registry and cannot be read",
        data={},
        recorded_at=datetime.fromtimestamp(0, UTC),
        previous_hash=previous_hash,
        hash=hash_,
    )


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
        if row.previous_hash != expected or not is_intact(row):
            broken.append(row.sequence)
        previous = row
    return tuple(broken)


class ChainBreak(Message):
    """The first row at which a chain is not what it was when its rows were written."""

    sequence: int
    problem: str


def first_break(rows: Iterable[AuditRow], *, after: AuditHead) -> ChainBreak | None:
    """Return the first row that does not continue the chain from `after`, or was altered itself.

    `rows` are all of one environment's from there on, oldest first, without gaps.
    """
    sequence, previous_hash = after.sequence, after.hash
    for row in rows:
        sequence += 1
        if row.sequence != sequence:
            return ChainBreak(sequence=sequence, problem=f"it is missing; row {row.sequence} follows")
        if row.previous_hash != previous_hash:
            return ChainBreak(sequence=sequence, problem="it does not continue the row before it")
        if not is_intact(row):
            return ChainBreak(sequence=sequence, problem="it was changed after it was written")
        previous_hash = row.hash
    return None


def selects(query: AuditQuery, row: AuditRow) -> bool:
    """Whether a row of the query's environment is one of those it asks for; pages are not considered."""
    return (
        row.sequence > query.after
        and query.model in (None, row.service.model)
        and query.release_id in (None, row.release_id)
        and query.operator in (None, row.operator)
        and (query.since is None or row.recorded_at >= query.since)
        and (query.until is None or row.recorded_at < query.until)
    )


def head_of(environment: str, newest: AuditRow | None) -> AuditHead:
    """Return a chain's head; the empty chain has one too."""
    if newest is None:
        return AuditHead(environment=environment, sequence=0, hash=FIRST_PREVIOUS_HASH)
    return AuditHead(environment=environment, sequence=newest.sequence, hash=newest.hash)
