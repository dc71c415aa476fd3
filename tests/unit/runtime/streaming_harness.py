"""A client of `/generate` that can go away, and a gate that holds sessions back."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from runtime.decoder import Decoder, DecoderState
from runtime.generate import GenerateEndpoint
from runtime.instance import Instance
from runtime.streaming import Step

DEADLINE = 30.0


class Client:
    """Sends one request to `/generate` and reads its events; can go away in between."""

    def __init__(self, instance: Instance, body: object, **options: Any) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[tuple[str, Any]] = []
        self.comments = 0
        self.raw = b""
        self._leaving = asyncio.Event()
        self._sent = False
        self._content = orjson.dumps(body)
        self._changed = asyncio.Event()
        endpoint = GenerateEndpoint(instance, **options)
        self.task = asyncio.create_task(endpoint({"type": "http", "headers": []}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.raw += message["body"]
            self._read(message["body"])
        self._changed.set()

    def _read(self, body: bytes) -> None:
        if self.status != 200:
            return
        for block in body.decode().strip().split("\n\n"):
            if block.startswith(":"):
                self.comments += 1
            else:
                kind, data = block.split("\n")
                self.events.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))

    def leave(self) -> None:
        self._leaving.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def finished(self) -> list[int]:
        """Wait for the end; return the tokens."""
        await asyncio.wait_for(self.task, DEADLINE)
        return [data["token"] for kind, data in self.events if kind == "token"]


class Gate:
    """Lets the decoder take one step for each permit, and keeps the states it has opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.permits = threading.Semaphore(0)
        self.states: list[weakref.ref[Any]] = []
        self.caches: list[weakref.ref[Any]] = []
        step = Decoder.step
        open_session = Decoder.open

        def gated(decoder: Decoder, model: Any, state: DecoderState) -> Step:
            # The dry-run is not held up.
            if threading.current_thread().name == "sessions":
                assert self.permits.acquire(timeout=DEADLINE)
            return step(decoder, model, state)

        def noted(decoder: Decoder, model: Any, prompt: Any) -> DecoderState:
            state = open_session(decoder, model, prompt)
            if threading.current_thread().name == "sessions":
                self.states.append(weakref.ref(state))
                self.caches.extend(weakref.ref(sample.cache.keys) for sample in state.samples)
            return state

        monkeypatch.setattr(Decoder, "step", gated)
        monkeypatch.setattr(Decoder, "open", noted)

    def all_freed(self) -> bool:
        gc.collect()
        return not any(reference() is not None for reference in (*self.states, *self.caches))
