"""Runs the model: one thread, micro-batches of whatever waits, never two generations in one batch."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from runtime.device_health import DeviceHealth, is_out_of_memory
from runtime.generation_holder import Generation, LoadedModel
from weightshift.errors import MemoryExhausted, QueueFull

_logger = logging.getLogger(__name__)

Finish = Callable[[LoadedModel, Any, Tensor], object]
"""Turns one request's output rows into its answer, on the executor's thread."""


def answer_body(loaded: LoadedModel, body: object, out: Tensor) -> object:
    """Answer as the architecture does, and check what it answers."""
    answer = loaded.architecture.postprocess(out, body, loaded.resources)
    loaded.architecture.validate(out, answer)
    return answer


@dataclass(slots=True, eq=False)
class Work:
    """One admitted request: its borrowed generation, its input rows and where the answer goes."""

    generation: Generation
    body: object
    rows: Tensor
    finish: Finish
    answer: asyncio.Future[object]


class Executor:
    """Answers admitted requests on its own thread, so that a forward never blocks the event loop.

    An idle executor takes whatever waits at once, and no request waits for a batch to fill. A batch holds
    at most `max_batch` requests, and no more than the dry-run has tried together. Each request's generation
    is returned here once its forward is over, whether or not the client is still there. One wake-up of the
    loop per batch.
    `batched` gets each batch's size and `scored` each answer's output rows, on the executor's thread.
    """

    def __init__(
        self,
        *,
        release: Callable[[Generation], None],
        batched: Callable[[int], None],
        scored: Callable[[Generation, Tensor], None],
        health: DeviceHealth,
        max_queue: int,
        max_batch: int,
    ) -> None:
        self._release = release
        self._batched = batched
        self._scored = scored
        self._health = health
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """Requests that wait for a batch."""
        return self._queue.qsize()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs; nothing could be answered without it."""
        return self._thread.is_alive()

    def submit(
        self, generation: Generation, body: object, rows: Tensor, *, finish: Finish = answer_body
    ) -> asyncio.Future[object]:
        """Queue a request; the executor owns the borrowed generation from here on.

        Raises `QueueFull`, and then the caller still owns it.
        """
        if self._queue.qsize() >= self._max_queue:
            raise QueueFull
        work = Work(generation, body, rows, finish, self._loop.create_future())
        self._queue.put(work)
        return work.answer

    def close(self, deadline: float) -> None:
        """Answer what is queued, then end the thread; wait at most `deadline` seconds."""
        self._queue.put(None)
        self._thread.join(deadline)

    def _run(self) -> None:
        torch.set_num_threads(1)
        carried: Work | None = None
        while True:
            batch, carried = self._collect(carried)
            if not batch:
                return
            # Whoever gave up while waiting costs no model work.
            wanted = [work for work in batch if not work.answer.cancelled()]
            outcomes = self._answer(wanted) if wanted else []
            for work in batch:
                self._release(work.generation)
            if wanted:
                self._batched(len(wanted))
                self._loop.call_soon_threadsafe(_deliver, wanted, outcomes)

    def _collect(self, carried: Work | None) -> tuple[list[Work], Work | None]:
        """Wait for work, then take what else waits for the same generation.

        Returns the batch (empty at the end of the queue), and the first work of another generation.
        """
        batch: list[Work] = []
        work = carried or self._queue.get()
        while work is not None:
            if batch and work.generation is not batch[0].generation:
                return batch, work
            batch.append(work)
            if len(batch) >= self._largest(work.generation) or self._queue.empty():
                return batch, None
            work = self._queue.get()
        if batch:
            self._queue.put(None)
        return batch, None

    def _largest(self, generation: Generation) -> int:
        """Return how many requests a batch may hold."""
        return min(self._max_batch, max(generation.loaded.architecture.batch_sizes))

    def _answer(self, batch: Sequence[Work]) -> list[object]:
        """Return an answer or an exception for each request; one that fails spoils no other."""
        loaded = batch[0].generation.loaded
        try:
            outputs = forward(loaded, [work.rows for work in batch])
        except Exception as error:
            self._health.note(error)
            if is_out_of_memory(error):
                self._health.exhausted()
                return [MemoryExhausted()] * len(batch)
            _logger.exception("a forward pass failed")
            return [error] * len(batch)
        return [self._finish(work, out) for work, out in zip(batch, outputs, strict=True)]

    def _finish(self, work: Work, out: Tensor) -> object:
        try:
            answer = work.finish(work.generation.loaded, work.body, out)
        except Exception as error:
            return error
        self._scored(work.generation, out)
        return answer


def forward(loaded: LoadedModel, rows: Sequence[Tensor]) -> list[Tensor]:
    """Run several requests' input rows in one pass; return each one's output rows, on the CPU."""
    with torch.inference_mode():
        together = rows[0] if len(rows) == 1 else torch.cat(list(rows))
        out = loaded.architecture.forward(loaded.module, together.to(loaded.device)).cpu()
        return list(torch.split(out, [len(part) for part in rows]))


def _deliver(batch: Sequence[Work], outcomes: Sequence[object]) -> None:
    for work, outcome in zip(batch, outcomes, strict=True):
        if work.answer.done():
            continue
        if isinstance(outcome, Exception):
            work.answer.set_exception(outcome)
        else:
            work.answer.set_result(outcome)
