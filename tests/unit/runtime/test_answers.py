"""What clients see of an instance; its registry and store are in the same process."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.architectures import Ranker

BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80, [1.0] * 80]}).encode()
DEADLINE = 10.0


async def test_an_answer_names_what_gave_it(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        answer = await client.post("/predict", content=BODY)
        assert answer.status_code == 200
        assert [item["index"] for item in answer.json()["items"]] in ([0, 1], [1, 0])
        assert answer.headers["x-weightshift-artifact"] == "v1"
        assert answer.headers["x-weightshift-revision"] == "1"
        assert int(answer.headers["x-weightshift-generation"]) > 0
        assert "torch" in answer.headers["x-weightshift-runtime-build"]
        for path in ("/startupz", "/readyz", "/livez", "/v2/health/live", "/v2/health/ready"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"[" * 2000, 400, "not JSON"),
        (b'{"context": [NaN]}', 400, "not JSON"),
        (b"{}", 400, "context is missing"),
        (json.dumps({"context": [0] * 8, "candidates": [[0] * 79]}).encode(), 400, "candidates[0]"),
        (b" " * 2000, 413, "larger"),
    ],
)
async def test_bad_input_gets_a_reason_and_never_a_server_error(
    world: Any, artifacts: Any, content: bytes, status: int, words: str
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(max_body_bytes=1999) as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        answer = await client.post("/predict", content=content)
        assert answer.status_code == status or len(content) > 1999
        assert answer.status_code in {400, 413}
        assert answer.json()["error"]["type"] == "InvalidInput"
        assert words in answer.json()["error"]["message"] or answer.status_code == 413
        for generation in instance.holder.resident:
            assert generation.references == 0


async def test_a_body_without_a_declared_size_is_bounded_too(world: Any, artifacts: Any) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 100

    async with world.running(max_body_bytes=1000) as instance, world.data_client(instance) as client:
        answer = await client.post("/predict", content=endless())
        assert answer.status_code == 413


async def test_a_body_that_never_comes_has_a_deadline(world: Any, artifacts: Any) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with world.running(body_timeout=0.01) as instance, world.data_client(instance) as client:
        answer = await client.post("/predict", content=stuck())
        assert answer.status_code == 408


async def test_unknown_routes_and_methods_have_the_same_error_shape(world: Any) -> None:
    async with world.running() as instance, world.data_client(instance) as client:
        for answer, status in (
            (await client.get("/predict"), 405),
            (await client.get("/nowhere"), 404),
            (await client.post("/readyz"), 405),
            (await client.post("/predict/", headers={"host": "elsewhere"}), 404),
        ):
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "InvalidInput"


async def test_a_full_queue_answers_503_with_a_time_to_come_back(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(max_queue=1, max_batch=1) as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        current = instance.holder.current
        assert current is not None
        entered, gate = threading.Event(), threading.Event()

        def wait_at_the_gate(*_: object) -> None:
            entered.set()
            assert gate.wait(DEADLINE)

        current.loaded.module.register_forward_pre_hook(wait_at_the_gate)
        first = asyncio.create_task(client.post("/predict", content=BODY))
        await asyncio.to_thread(entered.wait, DEADLINE)
        second = asyncio.create_task(client.post("/predict", content=BODY))
        await world.until(lambda: instance.executor.queue_length == 1)
        refused = await client.post("/predict", content=BODY)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "QueueFull"
        assert current.references == 2
        gate.set()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
        assert 'reason="queue_full"} 1.0' in (await instance.render_metrics()).decode()


async def test_a_model_that_fails_answers_500_and_says_nothing_of_its_insides(
    world: Any, artifacts: Any
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        current = instance.holder.current
        assert current is not None

        def fail(*_: object) -> None:
            raise RuntimeError("/secret/path")

        hook = current.loaded.module.register_forward_pre_hook(fail)
        answer = await client.post("/predict", content=BODY)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        hook.remove()
        assert (await client.post("/predict", content=BODY)).status_code == 200
        assert current.references == 0


async def test_an_answer_that_cannot_be_written_is_the_models_failure_and_counted_so(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))
        monkeypatch.setattr(Ranker, "postprocess", lambda *_: {"items": [{"index": 0, "score": object()}]})
        answer = await client.post("/predict", content=BODY)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "WeightshiftError"
        exposition = (await instance.render_metrics()).decode()
        assert 'code="200",cohort="stable",environment="test",model="ranker",revision="1"} 0.0' in exposition
        assert 'code="500",cohort="stable",environment="test",model="ranker",revision="1"} 1.0' in exposition


async def test_request_series_are_born_at_zero(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        exposition = (await instance.render_metrics()).decode()
    before, after = 'artifact="v1",', 'cohort="stable",environment="test",model="ranker",revision="1"'
    for code in (200, 400, 499, 500, 503, 504):
        assert f'weightshift_requests_total{{{before}code="{code}",{after}}} 0.0' in exposition
    assert f"weightshift_request_duration_seconds_count{{{before}{after}}} 0.0" in exposition


async def test_drained_it_refuses_and_stays_out(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running() as instance,
        world.data_client(instance) as client,
        world.admin_client(instance) as admin,
    ):
        await world.until(world.serving(instance, 1))
        assert (await admin.post("/admin/drain")).status_code == 202
        assert (await client.get("/readyz")).status_code == 503
        assert await instance.start_drain()
        for path in ("/predict", "/generate"):
            refused = await client.post(path, content=BODY)
            assert refused.status_code == 503
            assert refused.headers["connection"] == "close"
            assert refused.json()["error"]["type"] == "NotServing"
        assert (await client.get("/livez")).status_code == 200
        await world.until(lambda: True)
    report = await world.report()
    assert report is not None
    assert report.draining


async def test_a_background_task_that_dies_asks_for_a_restart_and_serving_goes_on(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.data_client(instance) as client:
        await world.until(world.serving(instance, 1))

        def fail(*_: object, **__: object) -> None:
            raise AssertionError

        monkeypatch.setattr(instance._reconciler, "accept", fail)
        monkeypatch.setattr(instance._watch, "_accept", fail)
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(lambda: not instance.is_live)
        assert (await client.get("/livez")).status_code == 503
        assert (await client.post("/predict", content=BODY)).status_code == 200
