"""An error that no later call on the device survives takes the instance out of service for good."""

import json
from typing import Any

import pytest
import torch

from runtime import device_health
from runtime.architectures import Ranker
from runtime.candidate import CandidateTracker
from runtime.device_health import DeviceHealth
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target

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


async def test_an_instance_without_memory_sends_requests_elsewhere_and_rests(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_health, "REST_SECONDS", 0.2)
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        with monkeypatch.context() as patched:
            # As much as no machine has: the allocator itself refuses.
            patched.setattr(Ranker, "forward", lambda *_: torch.empty(1 << 50, dtype=torch.uint8))
            answer = await client.post("/predict", content=BODY)
        assert answer.status_code == 503, "a proxy may repeat it on another instance"
        assert answer.json()["error"]["type"] == "MemoryExhausted"
        assert await status(client, "/readyz") == 503
        assert await status(client, "/livez") == 200
        await world.until(lambda: instance.is_ready)
        assert (await client.post("/predict", content=BODY)).status_code == 200


def test_every_shortage_starts_the_rest_anew() -> None:
    now = 100.0
    health = DeviceHealth(clock=lambda: now)
    health.exhausted()
    now += device_health.REST_SECONDS - 1
    health.exhausted()
    now += device_health.REST_SECONDS - 1
    assert health.rests
    now += 1
    assert not health.rests


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("no room"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_what_counts_as_a_shortage_of_memory(error: Exception, expected: bool) -> None:
    assert device_health.is_out_of_memory(error) is expected


def test_a_candidate_that_finds_no_memory_is_refused_for_good() -> None:
    target = Target(
        service=Service(model="ranker", environment="test"),
        cohort=Cohort.CANARY,
        revision=1,
        artifact_id="v1",
        manifest_sha256="ab" * 32,
        feature_schema="ranker-v1",
    )
    tracker = CandidateTracker(
        target=target,
        attempt=1,
        superseded=lambda: False,
        is_busy=lambda: False,
        changed=lambda: None,
        phase_ended=lambda phase, seconds: None,
    )
    error = tracker.fail(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert (error.type, error.permanent) == ("OutOfMemory", True)


def test_running_out_of_memory_is_survived() -> None:
    health = DeviceHealth()
    health.note(torch.OutOfMemoryError("no room"))
    assert not health.is_lost
