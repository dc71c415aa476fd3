"""What the tests of swaps share: what a model answers, where its weights are, and held dry-runs."""

import asyncio
import json
import threading
from typing import Any

import pytest
import torch

from runtime.architectures import Ranker
from runtime.execution import forward
from runtime.generation_holder import LoadedModel
from runtime.instance import Instance
from weightshift.errors import DryRunFailed

BODY = json.dumps({"context": [0.5] * 8, "candidates": [[0.25] * 80, [1.0] * 80]}).encode()
ROWS = torch.linspace(-1, 1, 88).reshape(1, 88)
LONG = 30.0


def scores(instance: Instance) -> torch.Tensor:
    current = instance.holder.current
    assert current is not None
    return forward(current.loaded, [ROWS])[0]


def addresses(loaded: LoadedModel) -> list[int]:
    return [tensor.data_ptr() for tensor in loaded.module.state_dict().values()]


async def failed(world: Any, name: str) -> Any:
    """Wait until a candidate has failed with this error; return it. By then it may be tried again."""
    found: list[Any] = []

    async def has_failed() -> bool:
        report = await world.report()
        candidate = report.candidate if report else None
        error = (candidate.error or candidate.last_error) if candidate else None
        found[:] = [error] if error is not None and error.type == name else []
        return bool(found)

    await world.until(has_failed)
    return found[0]


class Traffic:
    """Clients that send one request after the other and remember every answer."""

    def __init__(self, client: Any) -> None:
        self.answers: list[Any] = []
        self._client = client
        self._stopping = False

    async def run(self) -> None:
        while not self._stopping:
            self.answers.append(await self._client.post("/predict", content=BODY))

    def revisions(self) -> list[str]:
        return [answer.headers["x-weightshift-revision"] for answer in self.answers]

    async def __aenter__(self) -> "Traffic":
        self._tasks = [asyncio.create_task(self.run()) for _ in range(6)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


class DryRuns:
    """Holds candidates back in their dry-run, or fails them there, from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        self.fails = False
        self._monkeypatch = monkeypatch

    def arm(self) -> None:
        samples = Ranker.samples

        def held(ranker: Ranker, resources: Any) -> Any:
            self.reached.set()
            assert self.gate.wait(LONG)
            if self.fails:
                raise DryRunFailed("as the test wants")
            return samples(ranker, resources)

        self._monkeypatch.setattr(Ranker, "samples", held)
