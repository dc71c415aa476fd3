"""Raising a restored database's counters above everything that was ever seen.

A database restored from a backup would hand out revisions and epochs again that runtimes and meshes
have already accepted, and they would refuse them for ever.
"""

from pydantic import TypeAdapter, ValidationError
from ulid import ULID

from weightshift.contracts.base import Message, Name, describe_problems
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput
from weightshift.registry.chain import Entry
from weightshift.registry.postgres import audit
from weightshift.registry.postgres.database import Connection, lone_connection
from weightshift.registry.postgres.targets import lock_counter
from weightshift.registry.sql import QUERIES

STATEMENT_SECONDS = 60.0
HIGHEST = 1 << 40
"""What a counter can be raised to: far above any real one, and it never falls again after a slip."""

_NAME: TypeAdapter[str] = TypeAdapter(Name)


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
    other tables show; they never fall. Raises `InvalidInput`, `RegistryUnreachable`.
    """
    _check(environment, revision_at_least, epoch_at_least)
    async with (
        lone_connection(dsn=dsn, seconds=STATEMENT_SECONDS) as connection,
        connection.transaction(),
    ):
        seen = await connection.fetch(QUERIES["select_highest_seen"], environment, HIGHEST)
        # All of them before the audit chain, as every publication locks: the other way round they would
        # wait for each other.
        for record in seen:
            await lock_counter(connection, Service(model=record["model_name"], environment=environment))
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


def _check(environment: str, revision: int, epoch: int) -> None:
    try:
        _NAME.validate_python(environment)
    except ValidationError as error:
        raise InvalidInput(f"environment: {describe_problems(error)}.") from error
    if not (0 <= revision <= HIGHEST and 0 <= epoch <= HIGHEST):
        raise InvalidInput(
            f"revision_at_least and epoch_at_least lie between 0 and {HIGHEST}; give the highest ever seen."
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
