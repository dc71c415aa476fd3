"""Sessions that stream: each stays on the generation it began on, until it ends or its time is up."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch

from runtime.device_health import DeviceHealth, is_out_of_memory
from runtime.generation_holder import Generation, LoadedModel
from runtime.streaming import StreamingArchitecture
from weightshift.errors import MemoryExhausted, QueueFull, SessionEnded, WeightshiftError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """`token` and its data, `done`, or `error` and its reason; the last two end the session."""

    kind: str
    data: Any = None


@dataclass(eq=False)
class Session:
    """One request that streams. `events` is bounded by the steps that its architecture allows."""

    generation: Generation
    prompt: Any
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    is_cancelled: bool = False
    state: Any = None
    is_open: bool = False

    def cancel(self) -> None:
        """Stop at the next step, and free everything; the client is gone."""
        self.is_cancelled = True


class Sessions:
    """Steps all sessions in turn on one thread, and returns their generations when they end.

    At most `limit` run at once. `deadline` is how many seconds a session may outlive the moment its
    generation was superseded.
    """

    def __init__(
        self,
        *,
        release: Callable[[Generation], None],
        health: DeviceHealth,
        limit: int,
        deadline: float,
    ) -> None:
        self._release = release
        self._health = health
        self._limit = limit
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._arriving: SimpleQueue[Session | None] = SimpleQueue()
        self._count = 0
        self._is_ending = False
        self._ending_model: LoadedModel | None = None
        self._thread = threading.Thread(target=self._run, name="sessions", daemon=True)
        self._thread.start()

    @property
    def active(self) -> int:
        """Sessions that have not ended."""
        return self._count

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def submit(self, generation: Generation, prompt: Any) -> Session:
        """Begin a session, which owns the borrowed generation from here on.

        Raises `QueueFull`, and then the caller still owns it. Belongs to the event loop's thread.
        """
        if self._count >= self._limit or self._is_ending:
            raise QueueFull(f"{self._count} sessions are streaming; try again later.")
        self._count += 1
        session = Session(generation, prompt)
        self._arriving.put(session)
        return session

    @contextmanager
    def ending(self, loaded: LoadedModel) -> Iterator[None]:
        """Inside, end the sessions that use a model with a typed event, at their next step."""
        self._ending_model = loaded
        try:
            yield
        finally:
            self._ending_model = None

    def end(self) -> None:
        """End every session with a typed event at its next step, and begin no other."""
        self._is_ending = True

    def close(self, deadline: float) -> None:
        """End every session, then the thread; wait at most `deadline` seconds."""
        self.end()
        self._arriving.put(None)
        self._thread.join(deadline)

    def _run(self) -> None:
        torch.set_num_threads(1)
        running: list[Session] = []
        is_closing = False
        while running or not is_closing:
            # Idle, it waits for the next session; busy, it takes what has arrived.
            while not self._arriving.empty() or not (running or is_closing):
                session = self._arriving.get()
                if session is None:
                    is_closing = True
                else:
                    running.append(session)
            running = [session for session in running if self._advance(session)]

    def _advance(self, session: Session) -> bool:
        """Take one step; returns whether there is another."""
        try:
            events, is_last = self._step(session)
        except Exception as error:
            self._health.note(error)
            if is_out_of_memory(error):
                self._health.exhausted()
                error = MemoryExhausted()
            if not isinstance(error, WeightshiftError):
                _logger.exception("a session failed")
                error = WeightshiftError("The model failed; the instance's log says why.")
            events, is_last = [Event("error", error)], True
        if is_last:
            self._finish(session)
        self._loop.call_soon_threadsafe(self._deliver, session, events, is_last)
        return not is_last

    def _step(self, session: Session) -> tuple[list[Event], bool]:
        if session.is_cancelled:
            return [], True
        is_ending = self._is_ending or session.generation.loaded is self._ending_model
        if is_ending or self._is_overdue(session.generation):
            raise SessionEnded
        architecture, module = _streaming(session.generation), session.generation.loaded.module
        with torch.inference_mode():
            if not session.is_open:
                session.state = architecture.open(module, session.prompt)
                session.is_open = True
            step = architecture.step(module, session.state)
        events = [Event("token", data) for data in step.events]
        return [*events, Event("done")] if step.is_last else events, step.is_last

    def _is_overdue(self, generation: Generation) -> bool:
        if generation.is_hurried:
            return True
        retired_at = generation.retired_at
        return retired_at is not None and time.monotonic() - retired_at > self._deadline

    def _finish(self, session: Session) -> None:
        try:
            if session.is_open:
                _streaming(session.generation).close(session.state)
        except Exception:
            _logger.exception("a session could not be closed")
        session.state = None
        self._release(session.generation)

    def _deliver(self, session: Session, events: list[Event], is_last: bool) -> None:
        self._count -= is_last
        for event in events:
            session.events.put_nowait(event)


def _streaming(generation: Generation) -> StreamingArchitecture:
    architecture = generation.loaded.architecture
    assert isinstance(architecture, StreamingArchitecture)  # noqa: S101  (checked before a session begins)
    return architecture
