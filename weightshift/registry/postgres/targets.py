"""The desired targets' rows, and the counters that revisions and epochs come from."""

from datetime import datetime
from typing import NamedTuple

import asyncpg

from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.contracts.health import Incident
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.errors import RevisionReused
from weightshift.registry import rules
from weightshift.registry.postgres import approvals, artifacts, audit, health
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import target_of
from weightshift.registry.sql import QUERIES

TARGET_CHANNEL = "weightshift_target"
"""Where a publication notifies; the payload is the service as JSON."""


class Counter(NamedTuple):
    """The last revision and epoch that a service has used, and its newest command about waves."""

    last_revision: int
    last_epoch: int
    wave_fence: Fence


async def lock_counter(connection: Connection, service: Service) -> Counter:
    """Return a service's counter, locked until the transaction ends."""
    key = service.model, service.environment
    await connection.execute(QUERIES["ensure_counter"], *key)
    record = await connection.fetchrow(QUERIES["lock_counter"], *key)
    assert record is not None  # noqa: S101 - the row was made above and rows are never deleted
    return Counter(
        last_revision=record["last_revision"],
        last_epoch=record["last_epoch"],
        wave_fence=Fence(epoch=record["wave_epoch"], sequence=record["wave_sequence"]),
    )


async def read(connection: Connection, service: Service) -> Targets:
    """Return both cohorts' targets, as one statement sees them."""
    held = await _held(connection, service)
    return Targets(**{cohort.value: target for cohort, (target, _) in held.items()})


async def publish(
    connection: Connection, publication: Publication, *, authoriser: ReleaseAuthoriser | None
) -> Target:
    """Publish a target, authorised where there is a key for it, with its audit row; wake its waiters.

    Raises `UnknownArtifact`, `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`,
    `RevisionReused`.
    """
    service = publication.service
    counter = await lock_counter(connection, service)
    first = await audit.find(connection, service.environment, publication.operation_id)
    if first:
        published = rules.repeated_publication(publication, first)
        held = await _held(connection, service)
        _, newest = held.get(publication.cohort, (None, None))
        if rules.is_overtaken(publication.fence, newest=newest, last_epoch=counter.last_epoch):
            await health.count(connection, service, Incident.STALE_FENCE)
        return published
    artifact = await artifacts.hold_ready(
        connection, service.model, publication.artifact_id, must_be_signed=authoriser is not None
    )
    held = await _held(connection, service)
    current, fence = held.get(publication.cohort, (None, None))
    rules.check_publication(publication, current=current, cohort_fence=fence, last_epoch=counter.last_epoch)
    now: datetime = await connection.fetchval(QUERIES["now"])
    target = rules.next_target(
        publication, artifact=artifact, current=current, revision=counter.last_revision + 1, updated_at=now
    )
    if authoriser is not None:
        target = authoriser.authorise(target, artifact=artifact, previous=current)
    await _write(connection, target, publication.fence)
    given = await approvals.of_release(connection, service, publication.release_id)
    entry = rules.publication_entry(
        publication,
        target,
        previous=current,
        artifact=artifact,
        artifact_approvals=await artifacts.approvals(connection, artifact),
        approvals=given,
    )
    await audit.append(connection, entry)
    await connection.execute(QUERIES["notify"], TARGET_CHANNEL, service.model_dump_json())
    return target


async def _write(connection: Connection, target: Target, fence: Fence) -> None:
    key = target.service.model, target.service.environment
    await connection.execute(QUERIES["set_last_revision"], *key, target.revision)
    try:
        await connection.execute(QUERIES["insert_revision"], *key, target.revision, target.artifact_id)
    except asyncpg.UniqueViolationError as error:
        raise RevisionReused(
            f"Revision {target.revision} of {target.service} was assigned before, so its counter is behind; "
            "run `weightshift registry recover`."
        ) from error
    await connection.execute(
        QUERIES["upsert_target"],
        *key,
        target.cohort.value,
        target.revision,
        target.artifact_id,
        target.serve_floor,
        fence.epoch,
        fence.sequence,
        target.updated_at,
        target.requires_grant,
        target.authorisation,
    )


async def _held(connection: Connection, service: Service) -> dict[Cohort, tuple[Target, Fence]]:
    records = await connection.fetch(QUERIES["select_targets"], service.model, service.environment)
    return {Cohort(record["cohort"]): (target_of(record), _fence(record)) for record in records}


def _fence(record: asyncpg.Record) -> Fence:
    return Fence(epoch=record["fence_epoch"], sequence=record["fence_sequence"])
