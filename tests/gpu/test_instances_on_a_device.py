"""A whole instance on a real device: swaps under load in both modes, and sessions across them."""

import asyncio
import json
from typing import Any

import pytest
import torch

from tests.unit.runtime.streaming_harness import Client
from tests.unit.runtime.test_sessions import push as push_decoder

pytestmark = pytest.mark.gpu
BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80, [1.0] * 80]}).encode()
SWAPS = 12


@pytest.mark.parametrize("mode", ["double-buffer", "in-place"])
async def test_swaps_under_load_fail_nothing_and_mix_nothing(world: Any, artifacts: Any, mode: str) -> None:
    manifests = [artifacts.push("v1"), artifacts.push("v2", seed=2)]
    answers: list[Any] = []
    stopping = asyncio.Event()

    async def ask(client: Any) -> None:
        while not stopping.is_set():
            answers.append(await client.post("/predict", content=BODY))

    await world.publish(manifests[0])
    async with (
        world.running(device="cuda", swap_mode=mode, standby_bytes=1 << 30) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        asking = [asyncio.create_task(ask(client)) for _ in range(8)]
        for revision in range(2, SWAPS + 2):
            await world.publish(manifests[(revision - 1) % 2])
            await world.until(world.serving(instance, revision))
        stopping.set()
        await asyncio.gather(*asking)
        report = await instance.current_report()
        assert report.device == torch.cuda.get_device_name()
        assert f"cuda-{torch.version.cuda}" in report.runtime_build
        exposition = (await instance.render_metrics()).decode()
    assert {answer.status_code for answer in answers} == {200}
    contents: dict[str, set[bytes]] = {}
    for answer in answers:
        contents.setdefault(answer.headers["x-weightshift-artifact"], set()).add(answer.content)
    assert set(contents) == {"v1", "v2"}
    assert contents["v1"].isdisjoint(contents["v2"])
    assert 'weightshift_device_memory_bytes{cohort="stable",environment="test",kind="allocated"' in exposition


async def test_many_swaps_leave_no_memory_behind(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(device="cuda") as instance:
        await world.until(world.serving(instance, 1))
        for revision in range(2, 6):
            await world.publish(artifacts.push(f"v{revision}", seed=revision))
            await world.until(world.serving(instance, revision))
        await world.until(lambda: len(instance.holder.resident) == 1)
        settled = torch.cuda.memory_allocated()
        for revision in range(6, 26):
            await world.publish(artifacts.push(f"v{revision}", seed=revision))
            await world.until(world.serving(instance, revision))
        await world.until(lambda: len(instance.holder.resident) == 1)
        await world.until(lambda: torch.cuda.memory_allocated() - settled < 1 << 20)


async def test_a_session_says_the_same_whether_or_not_a_swap_comes(world: Any, artifacts: Any) -> None:
    prompt = {"prompt": "hello", "max_tokens": 60}
    first, second = push_decoder(artifacts, "v1", 1), push_decoder(artifacts, "v2", 2)
    await world.publish(first)
    async with world.running(device="cuda") as instance:
        await world.until(world.serving(instance, 1))
        expected = await Client(instance, prompt).finished()
        client = Client(instance, prompt)
        await client.until(lambda: len(client.events) > 3)
        await world.publish(second)
        assert await client.finished() == expected
        await world.until(world.serving(instance, 2))
