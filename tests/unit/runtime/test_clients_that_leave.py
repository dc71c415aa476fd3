"""Clients that are gone before their answer, or soon will be: their requests are given up, and counted."""

import asyncio
import json
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor, nn

from runtime.architectures import Ranker
from runtime.endpoint import JsonFormat, ModelEndpoint
from runtime.instance import Instance

BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80]}).encode()
DEADLINE = 30.0
REQUESTS = "weightshift_requests_total"
PROXY_WAITS = (b"x-envoy-expected-rq-timeout-ms", b"200")
SECONDS = "weightshift_request_duration_seconds_sum"


class Client:
    """One request over bare ASGI, whose connection the test ends."""

    def __init__(self, instance: Instance, *headers: tuple[bytes, bytes]) -> None:
        self.status = 0
        self._leaving = asyncio.Event()
        self._messages = [{"type": "http.request", "body": BODY, "more_body": False}]
        endpoint = ModelEndpoint(instance, JsonFormat())
        self.task = asyncio.create_task(
            endpoint({"type": "http", "headers": headers}, self._receive, self._send)
        )

    async def _receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)

    def leave(self) -> None:
        self._leaving.set()


class Forward:
    """Holds every forward pass back until the gate opens, once armed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        self.rows: list[int] = []
        forward = Ranker.forward

        def gated(ranker: Ranker, model: nn.Module, batch: Tensor) -> Tensor:
            if threading.current_thread().name == "executor":
                self.entered.set()
                assert self.gate.wait(DEADLINE)
                self.rows.append(len(batch))
            return forward(ranker, model, batch)

        monkeypatch.setattr(Ranker, "forward", gated)


async def counted(instance: Instance, name: str, code: int | None = None) -> float:
    """The value of one series of requests."""
    families = text_string_to_metric_families((await instance.render_metrics()).decode())
    (value,) = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and (code is None or sample.labels["code"] == str(code))
    ]
    return value


async def test_one_who_leaves_while_waiting_costs_no_model_work(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Forward(monkeypatch)
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        first = Client(instance)
        await asyncio.to_thread(held.entered.wait, DEADLINE)
        gone, patient = Client(instance), Client(instance)
        await world.until(lambda: instance.executor.queue_length == 2)
        gone.leave()
        await asyncio.wait_for(gone.task, DEADLINE)
        assert gone.status == 0
        assert await counted(instance, REQUESTS, 499) == 1
        # A client is not missed before this long, and it counts for as long as it waited.
        assert await counted(instance, SECONDS) >= 0.05
        held.gate.set()
        await asyncio.wait_for(asyncio.gather(first.task, patient.task), DEADLINE)
        assert (first.status, patient.status) == (200, 200)
        assert held.rows == [1, 1]
        assert instance.holder.current.references == 0


async def test_the_end_of_the_connection_after_the_answer_is_nothing(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        client = Client(instance)
        await asyncio.wait_for(client.task, DEADLINE)
        client.leave()
        assert client.status == 200


async def test_what_the_proxy_gives_up_soon_is_an_error_that_is_counted(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Forward(monkeypatch)
    await world.publish(artifacts.push("v1"))
    async with world.running(answer_timeout=DEADLINE) as instance:
        await world.until(world.serving(instance, 1))
        on_device = Client(instance, PROXY_WAITS)
        await asyncio.to_thread(held.entered.wait, DEADLINE)
        queued = Client(instance, PROXY_WAITS)
        await asyncio.wait_for(asyncio.gather(on_device.task, queued.task), DEADLINE)
        assert (on_device.status, queued.status) == (504, 504)
        assert await counted(instance, REQUESTS, 504) == 2
        assert await counted(instance, SECONDS) >= 2 * 0.18
        held.gate.set()
        await world.until(lambda: instance.holder.current.references == 0)
        assert held.rows == [1]


async def test_the_proxys_time_goes_on_while_requests_are_held_back(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        async with instance.gate.paused():
            client = Client(instance, PROXY_WAITS)
            await asyncio.wait_for(client.task, DEADLINE)
            assert client.status == 504
        assert await counted(instance, REQUESTS, 504) == 1
        assert instance.holder.current.references == 0
