"""After a restore, counters must go on above everything that was ever seen."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tests.integration.registry.builders import (
    admission_of,
    make_ready,
    publication_of,
    report_of,
    wave_of,
)
from weightshift.contracts.evidence import AuditHead
from weightshift.contracts.health import Incident
from weightshift.contracts.identity import Fence, Service
from weightshift.errors import InvalidInput, RevisionReused
from weightshift.local.postgres import PostgresAddress
from weightshift.registry.recover import HIGHEST, Recovered, recover
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.verify import verify_chain


async def run(
    database: PostgresAddress, service: Service, *, revision: int = 0, epoch: int = 0
) -> tuple[Recovered, ...]:
    return await recover(
        dsn=database.application_dsn,
        environment=service.environment,
        revision_at_least=revision,
        epoch_at_least=epoch,
        operator="ada",
        reason="restored from Monday's backup",
    )


async def reset_counters(
    owner: "asyncpg.Connection[asyncpg.Record]", service: Service, *, revision: int = 0, epoch: int = 0
) -> None:
    """What a restore of an older backup does to them."""
    await owner.execute(
        "UPDATE service_counter SET last_revision = $3, last_epoch = $4 "
        "WHERE model_name = $1 AND environment = $2",
        service.model,
        service.environment,
        revision,
        epoch,
    )


async def test_a_counter_that_fell_behind_is_refused_counted_and_recovered(
    postgres_registry: PostgresRegistry,
    database: PostgresAddress,
    owner: "asyncpg.Connection[asyncpg.Record]",
    service: Service,
) -> None:
    await make_ready(postgres_registry, service, "v41", "v42")
    for revision in range(3):
        await postgres_registry.publish(publication_of(service, expected_revision=revision))
    await reset_counters(owner, service, revision=1)
    late = publication_of(service, artifact_id="v42", expected_revision=3)
    with pytest.raises(RevisionReused, match="registry recover"):
        await postgres_registry.publish(late)
    health = await postgres_registry.health(
        lost_after=timedelta(minutes=1), mismatch_after=timedelta(minutes=1)
    )
    counts = {one.incident: one.count for one in health.incidents if one.service == service}
    assert counts == {Incident.REVISION_REUSED: 1}
    (recovered,) = await run(database, service)
    assert (recovered.revision_before, recovered.revision) == (1, 3)
    assert (await postgres_registry.publish(late)).revision == 4


async def test_counters_rise_above_what_instances_have_seen(
    postgres_registry: PostgresRegistry, database: PostgresAddress, service: Service
) -> None:
    await make_ready(postgres_registry, service, "v41")
    await postgres_registry.report(report_of(service, "gpu-0", revision=30, desired_revision=40))
    await postgres_registry.report(report_of(service, "gpu-1", revision=41))
    await run(database, service)
    target = await postgres_registry.publish(publication_of(service))
    assert target.revision == 42


async def test_counters_rise_above_the_given_values_and_never_fall(
    postgres_registry: PostgresRegistry, database: PostgresAddress, service: Service
) -> None:
    await make_ready(postgres_registry, service, "v41")
    await postgres_registry.publish(publication_of(service, fence=Fence(epoch=0, sequence=1)))
    for given in ((100, 20), (50, 10)):
        (recovered,) = await run(database, service, revision=given[0], epoch=given[1])
        assert (recovered.revision, recovered.epoch) == (100, 20)
    admitted = await postgres_registry.admit(admission_of(service, "R9"))
    assert admitted.epoch == 21
    target = await postgres_registry.publish(
        publication_of(service, expected_revision=1, fence=Fence(epoch=21, sequence=1))
    )
    assert target.revision == 101


async def test_epochs_rise_above_what_fences_and_audit_rows_show(
    postgres_registry: PostgresRegistry,
    database: PostgresAddress,
    owner: "asyncpg.Connection[asyncpg.Record]",
    service: Service,
) -> None:
    await make_ready(postgres_registry, service, "v41")
    await postgres_registry.publish(publication_of(service, fence=Fence(epoch=7, sequence=1)))
    await postgres_registry.grant_wave(wave_of(service, 2, fence=Fence(epoch=8, sequence=2)))
    (by_grant,) = await run(database, service)
    assert by_grant.epoch == 8
    await owner.execute("DELETE FROM wave_grant WHERE environment = $1", service.environment)
    await owner.execute("DELETE FROM deployment_target WHERE environment = $1", service.environment)
    await reset_counters(owner, service)
    (by_audit,) = await run(database, service)
    assert (by_audit.revision, by_audit.epoch) == (1, 7)


async def test_a_recovery_is_audited_and_leaves_the_chain_whole(
    postgres_registry: PostgresRegistry, database: PostgresAddress, service: Service
) -> None:
    await make_ready(postgres_registry, service, "v41")
    await postgres_registry.publish(publication_of(service))
    neighbour = service.model_copy(update={"model": f"{service.model}-b"})
    await postgres_registry.report(report_of(neighbour, revision=5))
    recovered = await run(database, service)
    assert [one.service for one in recovered] == [service, neighbour]
    row = (await postgres_registry.audit(neighbour))[-1]
    assert (row.step, row.operator, row.summary) == ("recover", "ada", "restored from Monday's backup")
    chain = await verify_chain(postgres_registry.audit_page, service.environment)
    assert isinstance(chain, AuditHead)


async def test_an_environment_nobody_knows_has_nothing_to_recover(
    database: PostgresAddress, service: Service
) -> None:
    assert await run(database, service, revision=10) == ()


@pytest.mark.parametrize(
    "values", [{"revision": -1}, {"epoch": -1}, {"revision": 10**30}, {"epoch": HIGHEST + 1}]
)
async def test_a_slip_uses_no_counter_up(
    postgres_registry: PostgresRegistry, database: PostgresAddress, service: Service, values: dict[str, int]
) -> None:
    await postgres_registry.report(report_of(service, revision=3))
    with pytest.raises(InvalidInput, match="at_least"):
        await run(database, service, **values)
    with pytest.raises(InvalidInput, match="environment"):
        await run(database, service.model_copy(update={"environment": "../x"}))


async def test_a_report_of_an_impossible_revision_uses_no_counter_up(
    postgres_registry: PostgresRegistry, database: PostgresAddress, service: Service
) -> None:
    await postgres_registry.report(report_of(service, "gpu-0", revision=7))
    await postgres_registry.report(report_of(service, "gpu-1", revision=(1 << 53) - 1))
    await postgres_registry.report(report_of(service, "gpu-2", desired_revision=(1 << 53) - 1))
    (recovered,) = await run(database, service)
    assert recovered.revision == 7


async def test_a_recovery_and_publications_do_not_wait_for_each_other_for_ever(
    postgres_registry: PostgresRegistry, database: PostgresAddress, service: Service
) -> None:
    services = [service.model_copy(update={"model": f"{service.model}-{number}"}) for number in range(4)]
    for owner in services:
        await make_ready(postgres_registry, owner, "v41")
        await postgres_registry.publish(publication_of(owner))
    for _ in range(5):
        published = (
            postgres_registry.publish(publication_of(owner, expected_revision=None)) for owner in services
        )
        await asyncio.gather(run(database, service), *published)
