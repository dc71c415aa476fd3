"""A way back that lacks memory is tried again and ends the oldest streams; a new artifact waits for them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runtime import memory_budget
from runtime.instance import Instance
from tests.unit.runtime.streaming_harness import Client, Gate
from tests.unit.runtime.swap_harness import failed
from tests.unit.runtime.test_sessions import push as push_decoder


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@asynccontextmanager
async def streaming(
    world: Any, artifacts: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Instance, Client]]:
    """An instance that went from v1, with a stream, to v2 and v3, and has no room for a third model."""
    first, second, third = (push_decoder(artifacts, f"v{seed}", seed) for seed in (1, 2, 3))
    await world.publish(first)
    async with world.running(standby_bytes=0) as instance:
        await world.until(world.serving(instance, 1))
        client = Client(instance, {"prompt": "x", "max_tokens": 100})
        gate.permits.release(2)
        await client.until(lambda: len(client.events) == 2)
        for revision, manifest in ((2, second), (3, third)):
            await world.publish(manifest)
            await world.until(world.serving(instance, revision))
        await world.until(lambda: [one.revision for one in instance.holder.resident] == [1, 3])

        def free_bytes(_: str) -> int:
            return 1 << 40 if len(instance.holder.resident) < 2 else 0

        monkeypatch.setattr("runtime.memory_budget.free_bytes", free_bytes)
        yield instance, client


async def until_refused(world: Any, instance: Instance, revision: int, *, attempt: int) -> None:
    def is_refused() -> bool:
        candidate = instance.report().candidate
        return (
            candidate is not None
            and candidate.revision == revision
            and candidate.error is not None
            and candidate.attempt >= attempt
        )

    await world.until(is_refused)


async def test_a_way_back_ends_the_oldest_stream(
    world: Any, artifacts: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with streaming(world, artifacts, gate, monkeypatch) as (instance, client):
        await world.publish(push_decoder(artifacts, "v2", 2))
        await until_refused(world, instance, 4, attempt=1)
        gate.permits.release(100)
        await client.finished()
        kind, reason = client.events[-1]
        assert (kind, reason["type"]) == ("error", "SessionEnded")
        await world.until(world.serving(instance, 4))
        assert instance.holder.current is not None
        assert instance.holder.current.target.artifact_id == "v2"


async def test_a_new_artifact_waits_for_the_stream(
    world: Any, artifacts: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with streaming(world, artifacts, gate, monkeypatch) as (instance, client):
        await world.publish(push_decoder(artifacts, "v4", 4))
        await until_refused(world, instance, 4, attempt=2)
        gate.permits.release(100)
        assert len(await client.finished()) == 100
        assert client.events[-1] == ("done", {})
        await world.until(world.serving(instance, 4))


class Memory:
    """As much as there is on the host, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_short = False
        self._free_bytes = memory_budget.free_bytes
        monkeypatch.setattr(memory_budget, "free_bytes", self._free)

    def _free(self, device: str) -> int:
        return 0 if self.is_short else self._free_bytes(device)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    return Memory(monkeypatch)


async def test_a_way_back_is_tried_until_there_is_memory(world: Any, artifacts: Any, memory: Memory) -> None:
    first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
    await world.publish(first)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        await world.until(lambda: len(instance.holder.resident) == 1)
        memory.is_short = True
        await world.publish(first)
        await until_refused(world, instance, 3, attempt=3)
        # Whoever waits for it is told that it failed: a release of an artifact that served before must end.
        assert (await failed(world, "OutOfMemory")).permanent
        memory.is_short = False
        await world.until(world.serving(instance, 3))


async def test_what_served_before_a_restart_is_tried_until_there_is_memory(
    world: Any, artifacts: Any, memory: Memory
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    memory.is_short = True
    async with world.running() as instance:
        await until_refused(world, instance, 1, attempt=3)
        memory.is_short = False
        await world.until(world.serving(instance, 1))


async def test_a_new_artifact_without_memory_is_refused_for_good(
    world: Any, artifacts: Any, memory: Memory
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        memory.is_short = True
        await world.publish(artifacts.push("v2", seed=2))
        assert (await failed(world, "OutOfMemory")).permanent
