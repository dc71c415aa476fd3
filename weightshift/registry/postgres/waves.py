"""The wave grants' rows."""

from datetime import datetime

import asyncpg

from weightshift.contracts.health import Incident
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.wave import WaveGrant, WaveRequest, WaveRevocation
from weightshift.registry import wave_rules as rules
from weightshift.registry.postgres import audit, health
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import service_of
from weightshift.registry.postgres.targets import Counter, lock_counter
from weightshift.registry.rules import is_overtaken
from weightshift.registry.sql import QUERIES


async def grant(connection: Connection, request: WaveRequest) -> WaveGrant:
    """Let some instances swap to a revision. Raises `StaleFence`, `OperationConflict`."""
    service, fence = request.service, request.fence
    counter = await lock_counter(connection, service)
    if first := await audit.find(connection, service.environment, request.operation_id):
        await _note_repeat(connection, request, counter)
        return rules.repeated_grant(request, first)
    await _advance(connection, request, counter)
    now: datetime = await connection.fetchval(QUERIES["now"])
    granted = rules.granted(request, now=now)
    await connection.execute(
        QUERIES["insert_grant"],
        service.model,
        service.environment,
        fence.epoch,
        fence.sequence,
        granted.revision,
        list(granted.instance_ids),
        granted.expires_at,
    )
    await audit.append(connection, rules.grant_entry(request, granted))
    return granted


async def revoke(connection: Connection, revocation: WaveRevocation) -> None:
    """End every grant of a service. Raises `StaleFence`, `OperationConflict`."""
    service = revocation.service
    counter = await lock_counter(connection, service)
    if first := await audit.find(connection, service.environment, revocation.operation_id):
        await _note_repeat(connection, revocation, counter)
        rules.check_repeat(revocation, first)
        return
    await _advance(connection, revocation, counter)
    await connection.execute(QUERIES["revoke_grants"], service.model, service.environment)
    await audit.append(connection, rules.revocation_entry(revocation))


async def read(connection: Connection, service: Service) -> tuple[WaveGrant, ...]:
    """Return the grants that are in force, by the database's clock, oldest first."""
    records = await connection.fetch(QUERIES["select_grants"], service.model, service.environment)
    return tuple(_grant(record) for record in records)


async def _note_repeat(
    connection: Connection, command: WaveRequest | WaveRevocation, counter: Counter
) -> None:
    if is_overtaken(command.fence, newest=counter.wave_fence, last_epoch=counter.last_epoch):
        await health.count(connection, command.service, Incident.STALE_FENCE)


async def _advance(connection: Connection, command: WaveRequest | WaveRevocation, counter: Counter) -> None:
    """Make a command the newest one about the service's waves. Raises `StaleFence`."""
    rules.check_wave_fence(command, newest=counter.wave_fence, last_epoch=counter.last_epoch)
    service, fence = command.service, command.fence
    await connection.execute(
        QUERIES["set_wave_fence"], service.model, service.environment, fence.epoch, fence.sequence
    )


def _grant(record: asyncpg.Record) -> WaveGrant:
    return WaveGrant(
        service=service_of(record),
        revision=record["revision"],
        instance_ids=tuple(record["instance_ids"]),
        fence=Fence(epoch=record["fence_epoch"], sequence=record["fence_sequence"]),
        expires_at=record["expires_at"],
    )
