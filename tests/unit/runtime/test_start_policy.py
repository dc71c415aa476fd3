"""What a starting instance serves while the registry is away, and once it answers."""

from typing import Any

import pytest


@pytest.fixture
async def known(world: Any, artifacts: Any) -> Any:
    """Return a world in which an instance has served v1 once."""
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.until(lambda: instance._reconciler._state.trusted is not None)
    return world


async def test_the_trusted_cache_serves_while_the_registry_is_away(known: Any) -> None:
    known.registry.available = False
    known.store.objects.clear()
    async with known.running(start_policy="trusted-cache", start_wait=0.01) as instance:
        await known.until(known.serving(instance, 1))


async def test_with_wait_nothing_is_served_before_the_registry_has_answered(
    known: Any, artifacts: Any
) -> None:
    known.registry.available = False
    asked: list[bool] = []
    instance = known.create(start_policy="wait", start_wait=0.01)
    answered = instance._watch._answered

    def note(is_reached: bool) -> None:
        asked.append(is_reached)
        answered(is_reached)

    instance._watch._answered = note
    instance.start()
    try:
        await known.until(lambda: len(asked) > 3)
        assert not any(asked)
        assert instance.holder.current is None
        assert not instance.is_ready
        assert instance.is_live
        known.registry.available = True
        await known.publish(artifacts.push("v2", seed=2))
        await known.until(known.serving(instance, 2))
    finally:
        await instance.close()


async def test_with_wait_the_cache_is_enough_once_the_registry_has_answered(known: Any) -> None:
    known.store.objects.clear()
    async with known.running(start_policy="wait") as instance:
        await known.until(known.serving(instance, 1))


async def test_an_instance_that_may_not_swap_loads_its_target_and_not_what_served_before(
    known: Any, artifacts: Any
) -> None:
    await known.publish(artifacts.push("v2", seed=2))
    async with known.running(swap_mode="refuse") as instance:
        await known.until(known.serving(instance, 2))


async def test_an_instance_that_may_not_swap_serves_from_the_cache_without_the_registry(known: Any) -> None:
    known.registry.available = False
    async with known.running(swap_mode="refuse", start_wait=0.01) as instance:
        await known.until(known.serving(instance, 1))
