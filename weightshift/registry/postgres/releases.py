"""The releases' rows, one of which per service may be active: the release lock."""

import asyncpg

from weightshift.contracts.identity import Service
from weightshift.contracts.release import Admission, Admitted, Completion, Outcome, ReleaseRecord
from weightshift.registry import rules
from weightshift.registry.postgres import artifacts, audit, targets
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import service_of
from weightshift.registry.sql import QUERIES

_REQUEST_KEY = "release_request_key"
"""The index that lets a request key be used once."""


async def admit(connection: Connection, admission: Admission, *, must_be_signed: bool) -> Admitted:
    """Take the release lock and allocate an epoch, or return the first result of a repeat.

    Raises `ReleaseActive`, `Conflict`, `OperationConflict`, `UnknownArtifact`, `ArtifactNotReady`.
    """
    return await _take_lock(connection, admission, holder=None, must_be_signed=must_be_signed)


async def take_over(
    connection: Connection, holder: str, admission: Admission, *, must_be_signed: bool
) -> Admitted:
    """Take the release lock from `holder`, whose workflow has ended. Raises what `admit` raises."""
    return await _take_lock(connection, admission, holder=holder, must_be_signed=must_be_signed)


async def complete(connection: Connection, completion: Completion) -> None:
    """Record the outcome and free the lock, once."""
    record = await _fetch(connection, "lock_release", completion.release_id)
    if record is not None and record.outcome is None:
        await _complete(connection, completion, operator=record.operator)


async def _take_lock(
    connection: Connection, admission: Admission, *, holder: str | None, must_be_signed: bool
) -> Admitted:
    request = admission.request
    service = request.service
    counter = await targets.lock_counter(connection, service)
    published = await targets.read(connection, service)
    if recorded := await _fetch(connection, "select_release", request.release_id):
        return Admitted(epoch=rules.repeated_admission(admission, recorded), targets=published)
    # Locked, because its own completion may be under way.
    active = await _fetch(connection, "lock_active_release", service.model, service.environment)
    keyed = await _fetch(connection, "select_release_by_key", request.request_key)
    if holder is None:
        rules.check_admission(request, active=active, keyed=keyed)
    else:
        rules.check_take_over(request, active=active, holder=holder)
        rules.check_admission(request, active=None, keyed=keyed)
    await artifacts.hold_ready(connection, service.model, request.artifact_id, must_be_signed=must_be_signed)
    if active is not None:
        await _complete(connection, rules.abandonment(active, request), operator=request.operator)
    epoch = counter.last_epoch + 1
    try:
        await _insert(connection, admission, epoch)
    except asyncpg.UniqueViolationError as error:
        # Of two services at once: neither's lock keeps the other out until one of them has committed.
        raise rules.taken_meanwhile(request, is_key=error.constraint_name == _REQUEST_KEY) from error
    await audit.append(connection, rules.admission_entry(admission, epoch=epoch))
    return Admitted(epoch=epoch, targets=published)


async def _complete(connection: Connection, completion: Completion, *, operator: str) -> None:
    await connection.execute(
        QUERIES["finish_release"], completion.release_id, completion.outcome.value, completion.reason
    )
    await audit.append(connection, rules.completion_entry(completion, operator=operator))


async def read_all(connection: Connection, service: Service) -> tuple[ReleaseRecord, ...]:
    """Return a service's releases, newest first."""
    records = await connection.fetch(QUERIES["select_releases"], service.model, service.environment)
    return tuple(_release(record) for record in records)


async def _insert(connection: Connection, admission: Admission, epoch: int) -> None:
    request = admission.request
    key = request.service.model, request.service.environment
    await connection.execute(QUERIES["set_last_epoch"], *key, epoch)
    await connection.execute(
        QUERIES["insert_release"],
        request.release_id,
        admission.run_id,
        *key,
        request.artifact_id,
        request.operator,
        epoch,
        request.request_key,
        request.digest(),
    )


async def _fetch(connection: Connection, query: str, *arguments: str | None) -> ReleaseRecord | None:
    record = await connection.fetchrow(QUERIES[query], *arguments)
    return _release(record) if record else None


def _release(record: asyncpg.Record) -> ReleaseRecord:
    return ReleaseRecord(
        release_id=record["release_id"],
        service=service_of(record),
        artifact_id=record["artifact_id"],
        operator=record["operator"],
        epoch=record["epoch"],
        outcome=Outcome(record["outcome"]) if record["outcome"] else None,
        reason=record["reason"],
        started_at=record["started_at"],
        finished_at=record["finished_at"],
        run_id=record["run_id"],
        request_key=record["request_key"],
        request_digest=record["request_digest"],
    )
