"""Clients that are gone before their answer: what they waited for is given up."""

import asyncio
import json
import threading
from typing import Any

import pytest
from torch import Tensor, nn

from runtime.architectures import Ranker
from runtime.endpoint import JsonFormat, ModelEndpoint
from runtime.instance import Instance

BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80]}).encode()
DEADLINE = 30.0


class Client:
    """One request over bare ASGI, whose connection the test ends."""

    def __init__(self, instance: Instance) -> None:
        self.status = 0
        self._leaving = asyncio.Event()
        self._messages = [{"type": "http.request", "body": BODY, "more_body": False}]
        endpoint = ModelEndpoint(instance, JsonFormat())
        self.task = asyncio.create_task(endpoint({"type": "http", "headers": []}, self._receive, self._send))

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
