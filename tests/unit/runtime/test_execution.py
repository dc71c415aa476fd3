import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime.architectures import Ranker
from runtime.device_health import DeviceHealth
from runtime.execution import Executor
from runtime.generation_holder import Generation
from weightshift.errors import QueueFull

MakeGeneration = Callable[..., Generation]
BODY = {"context": [0.0] * 8, "candidates": [[0.0] * 80], "top": 1}


class Gated(Ranker):
    """Notes which module answers which number of rows, and waits to be let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.batches: list[tuple[nn.Module, int]] = []

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.entered.set()
        assert self.gate.wait(10)
        self.batches.append((model, len(batch)))
        return super().forward(model, batch)


class Bench:
    def __init__(self, make_generation: MakeGeneration) -> None:
        self.architecture = Gated()
        self.released: list[Generation] = []
        self.sizes: list[int] = []
        self.health = DeviceHealth()
        self.scored: list[tuple[Generation, int]] = []
        self.executor = Executor(
            release=self.released.append,
            batched=self.sizes.append,
            scored=lambda generation, out: self.scored.append((generation, len(out))),
            health=self.health,
            max_queue=4,
            max_batch=3,
        )
        self._make_generation = make_generation

    def generation(self, revision: int) -> Generation:
        generation = self._make_generation(revision)
        generation.loaded = replace(generation.loaded, architecture=self.architecture)
        return generation

    def submit(self, generation: Generation, body: object = None, rows: int = 1) -> asyncio.Future[object]:
        return self.executor.submit(generation, body or BODY, torch.zeros(rows, 88))

    async def occupy(self, generation: Generation) -> asyncio.Future[object]:
        """Submit a request and wait until the executor is inside its forward."""
        answer = self.submit(generation)
        await asyncio.to_thread(self.architecture.entered.wait, 10)
        return answer


@pytest.fixture
async def bench(make_generation: MakeGeneration) -> AsyncIterator[Bench]:
    bench = Bench(make_generation)
    yield bench
    bench.architecture.gate.set()
    await asyncio.to_thread(bench.executor.close, 10)
    assert not bench.executor.is_alive


async def test_batches_take_what_waits_and_never_mix_generations(bench: Bench) -> None:
    old, new = bench.generation(1), bench.generation(2)
    answers = [await bench.occupy(old)]
    answers += [bench.submit(old), bench.submit(old), bench.submit(new), bench.submit(new)]
    bench.architecture.gate.set()
    await asyncio.wait_for(asyncio.gather(*answers), 10)
    assert bench.architecture.batches == [
        (old.loaded.module, 1),
        (old.loaded.module, 2),
        (new.loaded.module, 2),
    ]
    assert bench.sizes == [1, 2, 2]
    assert bench.released == [old] * 3 + [new] * 2


async def test_a_batch_has_a_bound(bench: Bench) -> None:
    generation = bench.generation(1)
    answers = [await bench.occupy(generation), *(bench.submit(generation) for _ in range(4))]
    bench.architecture.gate.set()
    await asyncio.wait_for(asyncio.gather(*answers), 10)
    assert bench.sizes == [1, 3, 1]


async def test_no_batch_is_larger_than_the_dry_run_has_tried(bench: Bench) -> None:
    bench.architecture.batch_sizes = (1, 2)
    generation = bench.generation(1)
    answers = [await bench.occupy(generation), *(bench.submit(generation) for _ in range(4))]
    bench.architecture.gate.set()
    await asyncio.wait_for(asyncio.gather(*answers), 10)
    assert bench.sizes == [1, 2, 2]


async def test_a_full_queue_refuses_and_leaves_the_generation_to_the_caller(bench: Bench) -> None:
    generation = bench.generation(1)
    await bench.occupy(generation)
    for _ in range(4):
        bench.submit(generation)
    with pytest.raises(QueueFull):
        bench.submit(generation)
    assert bench.executor.queue_length == 4


async def test_every_request_of_a_batch_gets_its_own_rows(bench: Bench) -> None:
    generation = bench.generation(1)
    await bench.occupy(generation)
    body = {**BODY, "top": 64}
    answers = [bench.submit(generation, body, rows) for rows in (1, 5, 2)]
    bench.architecture.gate.set()
    items: list[Any] = await asyncio.wait_for(asyncio.gather(*answers), 10)
    assert [len(answer["items"]) for answer in items] == [1, 5, 2]


async def test_a_bad_output_fails_only_its_own_request(bench: Bench) -> None:
    generation = bench.generation(1)
    await bench.occupy(generation)
    bad = bench.executor.submit(generation, BODY, torch.full((1, 88), float("nan")))
    good = bench.submit(generation)
    bench.architecture.gate.set()
    with pytest.raises(Exception, match="not finite"):
        await asyncio.wait_for(bad, 10)
    assert await asyncio.wait_for(good, 10)
    assert len(bench.released) >= 3


async def test_only_answers_are_scored(bench: Bench) -> None:
    bench.architecture.gate.set()
    good, bad = bench.generation(1), bench.generation(2)
    await asyncio.wait_for(bench.submit(good, rows=2), 10)
    with pytest.raises(KeyError):
        await asyncio.wait_for(bench.executor.submit(bad, {}, torch.zeros(0, 88), finish=fail), 10)
    assert bench.scored == [(good, 2)]


def fail(*_: object) -> object:
    raise KeyError


async def test_a_failing_forward_fails_its_batch_and_the_executor_goes_on(bench: Bench) -> None:
    generation = bench.generation(1)
    bench.architecture.gate.set()
    with pytest.raises(RuntimeError):
        await asyncio.wait_for(bench.executor.submit(generation, BODY, torch.zeros(1, 87)), 10)
    assert await asyncio.wait_for(bench.submit(generation), 10)
    assert bench.released == [generation] * 2


async def test_a_cancelled_request_still_returns_its_generation(bench: Bench) -> None:
    generation = bench.generation(1)
    (await bench.occupy(generation)).cancel()
    last = bench.submit(generation)
    bench.architecture.gate.set()
    await asyncio.wait_for(last, 10)
    assert bench.released == [generation] * 2


async def test_a_request_cancelled_while_it_waited_costs_no_model_work(bench: Bench) -> None:
    generation = bench.generation(1)
    first = await bench.occupy(generation)
    waiting = [bench.submit(generation) for _ in range(3)]
    for answer in waiting[:2]:
        answer.cancel()
    bench.architecture.gate.set()
    await asyncio.wait_for(asyncio.gather(first, waiting[2]), 10)
    assert bench.sizes == [1, 1]
    assert bench.released == [generation] * 4


async def test_a_batch_of_cancelled_requests_is_no_batch(bench: Bench) -> None:
    generation = bench.generation(1)
    first = await bench.occupy(generation)
    for answer in [bench.submit(generation) for _ in range(2)]:
        answer.cancel()
    bench.architecture.gate.set()
    await asyncio.wait_for(first, 10)
    await asyncio.to_thread(bench.executor.close, 10)
    assert bench.sizes == [1]
    assert bench.released == [generation] * 3


async def test_the_end_waits_for_what_is_queued(bench: Bench) -> None:
    generation = bench.generation(1)
    answers = [await bench.occupy(generation), bench.submit(generation)]
    bench.architecture.gate.set()
    await asyncio.to_thread(bench.executor.close, 10)
    assert await asyncio.gather(*answers)
    assert json.dumps(answers[0].result())
