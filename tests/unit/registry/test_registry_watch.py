import asyncio

import pytest

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import Publication, Target
from weightshift.errors import RegistryUnreachable
from weightshift.registry import watch
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.watch import TargetBell, await_target

SERVICE = Service(model="ranker", environment="test")
LONG = 60.0


@pytest.fixture
async def registry() -> MemoryRegistry:
    registry = MemoryRegistry()
    record = ArtifactRecord(
        model="ranker",
        artifact_id="v41",
        manifest_uri="file:///v41",
        manifest_sha256="a" * 64,
        feature_schema="features-1",
    )
    await registry.register_artifact(record, operator="ada")
    await registry.approve_artifact("ranker", "v41", operator="ada")
    return registry


async def publish(registry: MemoryRegistry, cohort: Cohort = Cohort.CANARY, number: int = 1) -> Target:
    return await registry.publish(
        Publication(
            service=SERVICE,
            cohort=cohort,
            artifact_id="v41",
            fence=Fence(epoch=1, sequence=number),
            operation_id=f"R1/{cohort}/{number}",
            release_id="R1",
            operator="ada",
        )
    )


async def waiting(registry: MemoryRegistry, bell: TargetBell, known: int) -> "asyncio.Task[Target | None]":
    """Start a waiter and return once it waits."""
    task = asyncio.create_task(await_target(registry, bell, SERVICE, Cohort.CANARY, known=known, wait=LONG))
    async with asyncio.timeout(5):
        while bell.waiting == 0:
            await asyncio.sleep(0)
    return task


async def test_a_target_that_differs_is_returned_at_once(registry: MemoryRegistry) -> None:
    target = await publish(registry)
    assert await await_target(registry, registry.bell, SERVICE, Cohort.CANARY, known=0, wait=LONG) == target


async def test_a_waiter_is_woken_by_the_publication(registry: MemoryRegistry) -> None:
    task = await waiting(registry, registry.bell, known=0)
    target = await publish(registry)
    async with asyncio.timeout(5):
        assert await task == target
    assert registry.bell.waiting == 0


async def test_a_publication_for_the_other_cohort_does_not_end_the_wait(registry: MemoryRegistry) -> None:
    task = await waiting(registry, registry.bell, known=0)
    await publish(registry, Cohort.STABLE)
    canary = await publish(registry, Cohort.CANARY)
    async with asyncio.timeout(5):
        assert await task == canary


async def test_without_a_change_the_wait_ends_with_what_is_known(registry: MemoryRegistry) -> None:
    target = await publish(registry)
    assert await await_target(registry, registry.bell, SERVICE, Cohort.CANARY, known=1, wait=0.01) == target
    assert registry.bell.waiting == 0


async def test_a_bell_that_never_rings_is_made_up_for_by_polling(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)
    task = await waiting(registry, TargetBell(), known=0)
    target = await publish(registry)
    async with asyncio.timeout(5):
        assert await task == target


async def test_ringing_for_all_wakes_every_waiter(registry: MemoryRegistry) -> None:
    silent = TargetBell()
    task = await waiting(registry, silent, known=0)
    target = await publish(registry)
    silent.ring_all()
    async with asyncio.timeout(4):
        assert await task == target


async def test_waiters_are_bounded(registry: MemoryRegistry) -> None:
    bell = TargetBell(max_waiters=1)
    task = await waiting(registry, bell, known=0)
    with pytest.raises(RegistryUnreachable):
        await await_target(registry, bell, SERVICE, Cohort.CANARY, known=0, wait=LONG)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bell.waiting == 0


async def test_a_registry_that_goes_away_ends_the_wait(registry: MemoryRegistry) -> None:
    task = await waiting(registry, registry.bell, known=0)
    registry.available = False
    registry.bell.ring_all()
    with pytest.raises(RegistryUnreachable):
        async with asyncio.timeout(4):
            await task
