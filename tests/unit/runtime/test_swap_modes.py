"""How a candidate takes over: beside what serves, over it, or not at all."""

import json
from typing import Any

import pytest
import torch

from tests.unit.runtime.streaming_harness import Client, Gate
from tests.unit.runtime.swap_harness import Traffic, addresses, failed, scores
from tests.unit.runtime.test_sessions import push as push_decoder
from weightshift.contracts.manifest import Manifest

BUDGET = 1 << 30


async def test_in_place_the_new_weights_have_the_old_addresses(world: Any, artifacts: Any) -> None:
    first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
    await world.publish(first)
    async with world.running(swap_mode="in-place", standby_bytes=BUDGET) as instance:
        await world.until(world.serving(instance, 1))
        storage, old_scores = addresses(instance.holder.current.loaded), scores(instance)
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        assert addresses(instance.holder.current.loaded) == storage
        new_scores = scores(instance)
        assert not torch.equal(new_scores, old_scores)
        await world.until(lambda: instance.tiers()[first.digest()].place == "host")
        world.store.objects.clear()
        await world.publish(first)
        await world.until(world.serving(instance, 3))
        assert addresses(instance.holder.current.loaded) == storage
        assert torch.equal(scores(instance), old_scores)
        await world.until(lambda: instance.tiers()[second.digest()].place == "host")


async def test_in_place_equals_a_model_loaded_beside(world: Any, artifacts: Any) -> None:
    second = artifacts.push("v2", seed=2)
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        swapped = scores(instance)
    async with world.running(instance_id="fresh") as instance:
        await world.until(world.serving(instance, 2))
        assert torch.equal(scores(instance), swapped)


async def test_what_the_small_files_say_belongs_to_the_candidate(world: Any, artifacts: Any) -> None:
    shifted = json.dumps({"mean": [1.0] * 88, "std": [2.0] * 88}).encode()
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", files={"normalisation.json": shifted}))
        await world.until(world.serving(instance, 2))
        assert float(instance.holder.current.loaded.resources.std[0]) == 2.0


async def test_other_shapes_are_loaded_beside(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        storage = addresses(instance.holder.current.loaded)
        wider = artifacts.push(
            "v2", weights=artifacts.weights(2, (16, 4)), files={"config.json": b'{"hidden": [16, 4]}'}
        )
        await world.publish(wider)
        await world.until(world.serving(instance, 2))
        assert addresses(instance.holder.current.loaded) != storage
        assert instance.gate.last_seconds is None


async def test_under_load_no_request_fails_and_each_gets_the_weights_it_names(
    world: Any, artifacts: Any
) -> None:
    manifests: list[Manifest] = [artifacts.push("v1"), artifacts.push("v2", seed=2)]
    await world.publish(manifests[0])
    async with (
        world.running(swap_mode="in-place", standby_bytes=BUDGET) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        async with Traffic(client) as traffic:
            for revision in range(2, 8):
                await world.publish(manifests[(revision - 1) % 2])
                await world.until(world.serving(instance, revision))
                seen = len(traffic.answers)
                await world.until(lambda seen=seen: len(traffic.answers) > seen + 10)
        exposition = (await instance.render_metrics()).decode()
    assert {answer.status_code for answer in traffic.answers} == {200}
    by_artifact: dict[str, set[bytes]] = {}
    for answer in traffic.answers:
        by_artifact.setdefault(answer.headers["x-weightshift-artifact"], set()).add(answer.content)
    assert {len(contents) for contents in by_artifact.values()} == {1}
    assert len(set.union(*by_artifact.values())) == 2
    assert set(traffic.revisions()) == {str(revision) for revision in range(1, 8)}
    assert (
        'weightshift_admission_pause_seconds_count{cohort="stable",environment="test",model="ranker"} 6'
        in (exposition)
    )


async def test_sessions_on_the_replaced_weights_get_a_typed_end(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    await world.publish(push_decoder(artifacts, "v1", 1))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        client = Client(instance, {"prompt": "hello", "max_tokens": 50})
        gate.permits.release(3)
        await client.until(lambda: len(client.events) == 3)
        await world.publish(push_decoder(artifacts, "v2", 2))
        await world.until(lambda: instance.gate.is_paused)
        gate.permits.release(47)
        await client.finished()
        assert client.events[-1][0] == "error"
        assert client.events[-1][1]["type"] == "SessionEnded"
        await world.until(world.serving(instance, 2))
        assert gate.all_freed()
        later = Client(instance, {"prompt": "hello", "max_tokens": 5})
        gate.permits.release(50)
        assert len(await later.finished()) == 5


async def test_refuse_keeps_what_serves_until_a_restart(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="refuse") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        error = await failed(world, "SwapRefused")
        assert error.permanent
        assert "restart" in error.message
        assert instance.is_ready
        assert instance.holder.current.revision == 1
    async with world.running(swap_mode="refuse") as instance:
        await world.until(world.serving(instance, 2))


async def test_without_room_for_both_the_figures_are_told(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        manifest = artifacts.push("v2", seed=2)
        instance._supply.preparer._margin = 1 << 60
        await world.publish(manifest)
        error = await failed(world, "OutOfMemory")
        assert "weights 5632" in error.message
        assert f"margin {1 << 60}" in error.message
        assert instance.is_ready
