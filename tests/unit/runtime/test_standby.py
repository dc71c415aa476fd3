"""The way back from host memory, and what is left of a model that is not kept."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from runtime import candidate_preparer, model_loader
from runtime.generation_holder import LoadedModel
from runtime.standby import Standby
from weightshift.errors import OutOfMemory

BUDGET = 1 << 30


def places(instance: Any) -> dict[str, str]:
    return {digest: tier.place for digest, tier in instance.tiers().items()}


async def test_a_rollback_needs_neither_disk_nor_store(world: Any, artifacts: Any, store: Any) -> None:
    first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
    await world.publish(first)
    async with world.running(standby_bytes=BUDGET) as instance:
        await world.until(world.serving(instance, 1))
        module = instance.holder.current.loaded.module
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        await world.until(lambda: instance.tiers()[first.digest()].place == "host")
        assert instance.tiers()[second.digest()].place == "device"
        (world.root / "artifacts").rename(world.root / "gone")
        (world.root / "artifacts").mkdir()
        store.objects.clear()
        await world.publish(first)
        await world.until(world.serving(instance, 3))
        assert instance.holder.current.loaded.module is module
        await world.until(lambda: places(instance) == {first.digest(): "device", second.digest(): "host"})


async def test_status_names_the_tiers(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest)
    async with world.running() as instance, world.admin_client(instance) as admin:
        await world.until(world.serving(instance, 1))
        tiers = (await admin.get("/admin/status")).json()["tiers"]
        assert tiers == {manifest.digest(): {"place": "device", "seconds": 0.0}}
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        await world.until(lambda: instance.tiers()[manifest.digest()].place == "disk")


async def test_twenty_swaps_leave_nothing_behind(world: Any, artifacts: Any) -> None:
    modules: list[weakref.ref[Any]] = []
    async with world.running() as instance:
        for revision in range(1, 21):
            await world.publish(artifacts.push(f"v{revision}", seed=revision))
            await world.until(world.serving(instance, revision))
            modules.append(weakref.ref(instance.holder.current.loaded.module))
        await world.until(lambda: len(instance.holder.resident) == 1)

        def reachable() -> int:
            gc.collect()
            return sum(module() is not None for module in modules)

        await world.until(lambda: reachable() == 1)
        assert modules[-1]() is not None


async def test_a_candidate_that_needs_the_memory_gets_it(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifacts.push("v1")
    await world.publish(first)
    async with world.running(standby_bytes=BUDGET) as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        await world.until(lambda: instance.tiers()[first.digest()].place == "host")

        def load_if_free(*arguments: Any, **options: Any) -> LoadedModel:
            if instance.tiers()[first.digest()].place == "host":
                raise OutOfMemory
            return model_loader.load(*arguments, **options)

        monkeypatch.setattr(candidate_preparer, "load", load_if_free)
        await world.publish(artifacts.push("v3", seed=3))
        await world.until(world.serving(instance, 3))


@pytest.mark.parametrize(
    ("has_served", "size", "budget", "margin", "is_kept"),
    [
        (True, 10, 10, 0, True),
        (True, 11, 10, 0, False),
        (False, 10, 10, 0, False),
        (True, 10, 10, 1 << 60, False),
    ],
)
async def test_what_is_kept(
    make_generation: Callable[..., Any],
    *,
    has_served: bool,
    size: int,
    budget: int,
    margin: int,
    is_kept: bool,
) -> None:
    disposed: list[LoadedModel] = []
    standby = Standby(budget=budget, margin=margin, dispose=disposed.append)
    loaded = make_generation(1).loaded
    loaded.has_served, loaded.allocated_bytes = has_served, size
    await asyncio.to_thread(standby.keep, loaded)
    assert disposed == ([] if is_kept else [loaded])
    assert standby.digest == (loaded.manifest_sha256 if is_kept else None)
    assert standby.take("another") is None
    assert standby.take(loaded.manifest_sha256) is (loaded if is_kept else None)
    assert standby.digest is None
