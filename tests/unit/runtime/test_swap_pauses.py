"""The pause of a swap in place: who waits, how long, and what serves after it, however the swap ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import in_place
from tests.unit.runtime.swap_harness import BODY, LONG, DryRuns, failed, scores


@pytest.fixture
def dry_runs(monkeypatch: pytest.MonkeyPatch) -> DryRuns:
    return DryRuns(monkeypatch)


@pytest.mark.parametrize("fails", [False, True])
async def test_requests_wait_for_the_dry_run_and_are_served_then(
    world: Any, artifacts: Any, dry_runs: DryRuns, *, fails: bool
) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=LONG) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        before = scores(instance)
        dry_runs.fails = fails
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        requests = [asyncio.create_task(client.post("/predict", content=BODY)) for _ in range(5)]
        await world.until(lambda: instance.gate.waiting == 5)
        assert instance.queue_length == 5
        assert instance.is_ready
        dry_runs.gate.set()
        answers = await asyncio.gather(*requests)
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["x-weightshift-revision"] for answer in answers} == {"1" if fails else "2"}
        assert torch.equal(scores(instance), before) is fails
        if fails:
            assert (await failed(world, "DryRunFailed")).permanent
        assert instance.gate.last_seconds > 0


async def test_a_pause_has_room_for_so_many_requests(world: Any, artifacts: Any, dry_runs: DryRuns) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=LONG, max_queue=2) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        waiting = [asyncio.create_task(client.post("/predict", content=BODY)) for _ in range(2)]
        await world.until(lambda: instance.gate.waiting == 2)
        refused = await client.post("/predict", content=BODY)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        dry_runs.gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}


async def test_a_dry_run_that_takes_too_long_is_undone_and_tried_again(
    world: Any, artifacts: Any, dry_runs: DryRuns
) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=0.05) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        before = scores(instance)
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        await asyncio.sleep(0.06)
        dry_runs.gate.set()
        assert not (await failed(world, "SwapTooSlow")).permanent
        await world.until(world.serving(instance, 2))
        assert not torch.equal(scores(instance), before)
        assert (await client.post("/predict", content=BODY)).status_code == 200


async def test_a_newer_target_during_the_swap_wins(world: Any, artifacts: Any, dry_runs: DryRuns) -> None:
    first = artifacts.push("v1")
    await world.publish(first)
    async with world.running(swap_mode="in-place", pause_limit=LONG) as instance:
        await world.until(world.serving(instance, 1))
        before = scores(instance)
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        await world.publish(first)
        await world.until(lambda: instance.report().desired_revision == 3)
        dry_runs.gate.set()
        await world.until(world.serving(instance, 3))
        assert torch.equal(scores(instance), before)


async def test_ending_in_the_middle_of_a_swap_leaves_whole_weights(
    world: Any, artifacts: Any, dry_runs: DryRuns
) -> None:
    await world.publish(artifacts.push("v1"))
    instance = world.create(swap_mode="in-place", pause_limit=LONG)
    instance.start()
    await world.until(world.serving(instance, 1))
    before = scores(instance)
    dry_runs.arm()
    await world.publish(artifacts.push("v2", seed=2))
    await world.until(dry_runs.reached.is_set)
    closing = asyncio.create_task(instance.close())
    await asyncio.sleep(0)
    dry_runs.gate.set()
    assert await closing
    assert torch.equal(scores(instance), before)


async def test_ending_while_a_swap_hangs_is_told(world: Any, artifacts: Any, dry_runs: DryRuns) -> None:
    await world.publish(artifacts.push("v1"))
    instance = world.create(swap_mode="in-place", drain_deadline=0.1)
    instance.start()
    await world.until(world.serving(instance, 1))
    dry_runs.arm()
    await world.publish(artifacts.push("v2", seed=2))
    await world.until(dry_runs.reached.is_set)
    try:
        assert not await instance.close()
    finally:
        dry_runs.gate.set()
    await world.until(lambda: not instance.gate.is_paused)


async def test_weights_that_cannot_be_put_back_take_the_instance_down(
    world: Any, artifacts: Any, dry_runs: DryRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        dry_runs.fails = True
        dry_runs.gate.set()
        dry_runs.arm()

        def fail(*_: object) -> None:
            raise torch.AcceleratorError("gone")

        monkeypatch.setattr(in_place.Exchange, "undo", refusing(fail, in_place.Exchange.undo))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(lambda: not instance.is_live)
        assert not instance.is_ready


def refusing(fail: Callable[..., None], undo: Callable[..., None]) -> Callable[..., None]:
    """Let the copying inside an undo fail."""

    def undone(exchange: Any) -> None:
        exchange._copy = fail
        undo(exchange)

    return undone
