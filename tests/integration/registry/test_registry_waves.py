"""Wave grants: who may swap now, and what ends that."""

import asyncio
from datetime import timedelta

import pytest

from tests.integration.registry.builders import (
    admission_of,
    make_ready,
    publication_of,
    revocation_of,
    wave_of,
)
from weightshift.contracts.identity import Fence, Service
from weightshift.errors import OperationConflict, StaleFence
from weightshift.registry.base import Registry


async def test_a_grant_covers_its_instances_and_revision_only(registry: Registry, service: Service) -> None:
    granted = await registry.grant_wave(wave_of(service, 1))
    assert await registry.wave_grants(service) == (granted,)
    assert granted.covers("gpu-0", 1)
    assert not granted.covers("gpu-2", 1)
    assert not granted.covers("gpu-0", 2)


async def test_waves_add_up_until_they_are_revoked(registry: Registry, service: Service) -> None:
    await registry.grant_wave(wave_of(service, 1))
    await registry.grant_wave(wave_of(service, 2, instance_ids=("gpu-2",)))
    assert len(await registry.wave_grants(service)) == 2
    await registry.revoke_waves(revocation_of(service, 3))
    assert await registry.wave_grants(service) == ()


async def test_a_repeated_grant_returns_the_first_and_revives_nothing(
    registry: Registry, service: Service
) -> None:
    granted = await registry.grant_wave(wave_of(service, 1))
    assert await registry.grant_wave(wave_of(service, 1)) == granted
    for _ in range(2):
        await registry.revoke_waves(revocation_of(service, 2))
    assert await registry.grant_wave(wave_of(service, 1)) == granted
    assert await registry.wave_grants(service) == ()
    assert [row.step for row in await registry.audit(service)] == ["grant-wave", "revoke-waves"]


async def test_an_operation_id_names_one_command(registry: Registry, service: Service) -> None:
    await registry.grant_wave(wave_of(service, 1))
    with pytest.raises(OperationConflict):
        await registry.grant_wave(wave_of(service, 1, instance_ids=("gpu-9",)))
    with pytest.raises(OperationConflict):
        await registry.revoke_waves(revocation_of(service, 1))


async def test_a_grant_that_a_revocation_overtook_is_refused(registry: Registry, service: Service) -> None:
    await registry.revoke_waves(revocation_of(service, 5))
    for fence in (Fence(epoch=1, sequence=4), Fence(epoch=1, sequence=5), Fence(epoch=0, sequence=9)):
        with pytest.raises(StaleFence):
            await registry.grant_wave(wave_of(service, 4, fence=fence))
    assert await registry.wave_grants(service) == ()


async def test_an_admitted_release_ends_the_waves_of_the_one_before(
    registry: Registry, service: Service
) -> None:
    await make_ready(registry, service, "v41")
    await registry.grant_wave(wave_of(service, 1, fence=Fence(epoch=0, sequence=1)))
    await registry.admit(admission_of(service, "R1"))
    assert await registry.wave_grants(service) == ()
    with pytest.raises(StaleFence):
        await registry.grant_wave(wave_of(service, 2, fence=Fence(epoch=0, sequence=2)))
    await registry.grant_wave(wave_of(service, 3, fence=Fence(epoch=1, sequence=1)))
    assert len(await registry.wave_grants(service)) == 1


async def test_an_expired_grant_is_none(registry: Registry, service: Service) -> None:
    await registry.grant_wave(wave_of(service, 1, lifetime=timedelta(milliseconds=1)))
    async with asyncio.timeout(10):
        while await registry.wave_grants(service):
            await asyncio.sleep(0.001)


async def test_services_do_not_share_waves(registry: Registry, service: Service) -> None:
    await registry.grant_wave(wave_of(service, 1))
    neighbour = service.model_copy(update={"model": f"{service.model}-b"})
    assert await registry.wave_grants(neighbour) == ()


async def test_a_target_says_that_it_needs_a_grant(registry: Registry, service: Service) -> None:
    await make_ready(registry, service, "v41")
    waved = await registry.publish(publication_of(service, requires_grant=True))
    assert waved.requires_grant
    assert (await registry.targets(service)).canary == waved
    sealed = await registry.publish(publication_of(service, expected_revision=None))
    assert not sealed.requires_grant
    assert (await registry.targets(service)).canary == sealed
