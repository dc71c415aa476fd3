"""Raising a restored database's counters above everything that was ever seen.

A database restored from a backup would hand out revisions and epochs again that runtimes and meshes
have already accepted, and they would refuse them for ever.
"""

from ulid import ULID

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Service
from weightshift.registry.chain import Entry
from weightshift.registry.postgres import audit
from weightshift.registry.postgres.database import Connection, lone_connection
from weightshift.registry.postgres.targets import lock_counter
from weightshift.registry.sql import QUERIES

STATEMENT_SECONDS = 60.0


class Recovered(Message):
    """One service's counters before and after. The next revision and epoch are one higher."""

    service: Service
    revision_before: int
    revision: int
    epoch_before: int
    epoch: int


async def recover(
    *,
    dsn: str,
    environment: str,
    revision_at_least: int,
    epoch_at_least: int,
    operator: str,
    reason: str,
) -> tuple[Recovered, ...]:
    """Raise both counters of an environment's services, in one transaction with its audit rows.

    They become the highest of the given values and of what instance reports, the audit chain and the
    other tables show; they never fall. Raises `RegistryUnreachable`.
    """
    async with (
        lone_connection(dsn=dsn, seconds=STATEMENT_SECONDS) as connection,
        connection.transaction(),
    ):
        seen = await connection.fetch(QUERIES["select_highest_seen"], environment)
        return tuple(
            [
                await _raise(
                    connection,
                    Service(model=record["model_name"], environment=environment),
                    revision=max(record["revision"], revision_at_least),
                    epoch=max(record["epoch"], epoch_at_least),
                    operator=operator,
                    reason=reason,
                )
                for record in seen
            ]
        )


async def _raise(
    connection: Connection,
    service: Service,
    *,
    revision: int,
    epoch: int,
    operator: str,
    reason: str,
) -> Recovered:
    counter = await lock_counter(connection, service)
    recovered = Recovered(
        service=service,
        revision_before=counter.last_revision,
        revision=max(revision, counter.last_revision),
        epoch_before=counter.last_epoch,
        epoch=max(epoch, counter.last_epoch),
    )
    key = service.model, service.environment
    await connection.execute(QUERIES["set_last_revision"], *key, recovered.revision)
    await connection.execute(QUERIES["set_last_epoch"], *key, recovered.epoch)
    entry = Entry(
        service=service,
        operation_id=f"recover:{ULID()}",
        step="recover",
        operator=operator,
        summary=reason or f"revisions go on after {recovered.revision}, epochs after {recovered.epoch}",
        data=recovered.model_dump(mode="json"),
    )
    await audit.append(connection, entry)
    return recovered
