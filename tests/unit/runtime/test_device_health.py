"""An error that no later call on the device survives takes the instance out of service for good."""

import json
from typing import Any

import pytest
import torch

from runtime.architectures import Ranker
from runtime.device_health import DeviceHealth

BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80]}).encode()


async def status(client: Any, path: str) -> int:
    code: int = (await client.get(path)).status_code
    return code


async def test_a_lost_device_is_neither_ready_nor_alive(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        assert await status(client, "/livez") == 200

        def fail(*_: object) -> None:
            raise torch.AcceleratorError("device-side assert triggered")

        monkeypatch.setattr(Ranker, "forward", fail)
        assert (await client.post("/predict", content=BODY)).status_code == 500
        assert await status(client, "/livez") == 503
        assert await status(client, "/readyz") == 503


async def test_any_other_failure_is_only_that_requests(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        with monkeypatch.context() as patched:
            patched.setattr(Ranker, "forward", lambda *_: 1 / 0)
            assert (await client.post("/predict", content=BODY)).status_code == 500
        assert (await client.post("/predict", content=BODY)).status_code == 200
        assert await status(client, "/livez") == 200
        assert await status(client, "/readyz") == 200


def test_running_out_of_memory_is_survived() -> None:
    health = DeviceHealth()
    health.note(torch.OutOfMemoryError("no room"))
    assert not health.is_lost
