"""The desired targets' rows, and the counters that revisions and epochs come from."""

from datetime import datetime
from typing import NamedTuple

import asyncpg

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.registry import rules
from weightshift.registry.postgres import artifacts, audit
from weightshift.registry.postgres.database import Connection
from weightshift.registry.sql import QUERIES

TARGET_CHANNEL = "weightshift_target"
"""Where a publication notifies; the payload is the service as JSON."""


class Counter(NamedTuple):
    """The last revision and epoch that a service has used."""

    last_revision: int
    last_epoch: int


async def lock_counter(connection: Connection, service: Service) -> Counter:
    """Return a service's counter, locked until the transaction ends."""
    key = service.model, service.environment
    await connection.execute(QUERIES["ensure_counter"], *key)
    record = await connection.fetchrow(QUERIES["lock_counter"], *key)
    assert record is not None  # noqa: S101 - the row was made above and rows are never deleted
    return Counter(last_revision=record["last_revision"], last_epoch=record["last_epoch"])


async def read(connection: Connection, service: Service) -> Targets:
    """Return both cohorts' targets, as one statement sees them."""
    held = await _held(connection, service)
    return Targets(**{cohort.value: target for cohort, (target, _) in held.items()})


async def publish(connection: Connection, publication: Publication) -> Target:
    """Publish a target with its audit row and wake its waiters.

    Raises `UnknownArtifact`, `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`.
    """
    service = publication.service
    counter = await lock_counter(connection, service)
    first = await audit.find(connection, service.environment, publication.operation_id)
    if first:
        return rules.repeated_publication(publication, first)
    artifact = await artifacts.hold_ready(connection, service.model, publication.artifact_id)
    held = await _held(connection, service)
    current, fence = held.get(publication.cohort, (None, None))
    rules.check_publication(publication, current=current, cohort_fence=fence, last_epoch=counter.last_epoch)
    now: datetime = await connection.fetchval(QUERIES["now"])
    target = rules.next_target(
        publication, artifact=artifact, current=current, revision=counter.last_revision + 1, updated_at=now
    )
    await _write(connection, target, publication.fence)
    await audit.append(connection, rules.publication_entry(publication, target))
    await connection.execute(QUERIES["notify"], TARGET_CHANNEL, service.model_dump_json())
    return target


async def _write(connection: Connection, target: Target, fence: Fence) -> None:
    key = target.service.model, target.service.environment
    await connection.execute(QUERIES["set_last_revision"], *key, target.revision)
    await connection.execute(QUERIES["insert_revision"], *key, target.revision, target.artifact_id)
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
    )


async def _held(connection: Connection, service: Service) -> dict[Cohort, tuple[Target, Fence]]:
    records = await connection.fetch(QUERIES["select_targets"], service.model, service.environment)
    return {Cohort(record["cohort"]): (_target(record), _fence(record)) for record in records}


def _fence(record: asyncpg.Record) -> Fence:
    return Fence(epoch=record["fence_epoch"], sequence=record["fence_sequence"])


def _target(record: asyncpg.Record) -> Target:
    return Target(
        service=Service(model=record["model_name"], environment=record["environment"]),
        cohort=Cohort(record["cohort"]),
        revision=record["revision"],
        artifact_id=record["artifact_id"],
        manifest_sha256=record["manifest_sha256"],
        feature_schema=record["feature_schema"],
        serve_floor=record["serve_floor"],
        updated_at=record["updated_at"],
    )
