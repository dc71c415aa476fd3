"""The moment of an in-place swap: requests wait, what is in progress ends, the weights change places."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from runtime.collection_pause import collection_paused
from runtime.device_health import DeviceHealth
from runtime.dry_run import dry_run
from runtime.generation_holder import Generation, GenerationHolder, LoadedModel
from runtime.in_place import Exchange
from runtime.pause import PauseGate, PausePhase
from runtime.sessions import Sessions
from weightshift.errors import Superseded, SwapTooSlow

_IDLE_POLL_SECONDS = 0.0005
_Result = TypeVar("_Result")


class InPlaceSwapper:
    """Swaps a staged candidate into the storage of what serves. Belongs to the event loop's thread.

    Requests wait at `gate` for at most about `limit` seconds: a swap that would keep them longer is given up
    at the next step of its dry-run. `phase_ended` gets the seconds of each part of a pause. Sessions on the
    replaced weights end with a typed event, since what they have computed is worth nothing under others.
    """

    def __init__(
        self,
        *,
        holder: GenerationHolder,
        gate: PauseGate,
        sessions: Sessions,
        health: DeviceHealth,
        limit: float,
        phase_ended: Callable[[str, float], None],
    ) -> None:
        self._holder = holder
        self._gate = gate
        self._sessions = sessions
        self._health = health
        self._limit = limit
        self._phase_ended = phase_ended

    async def install(self, candidate: Generation) -> None:
        """Make a generation whose model is staged the one that serves.

        Raises `Superseded`, `SwapTooSlow` and what the dry-run raises; then the previous one serves on.
        """
        current = self._holder.current
        assert current is not None  # noqa: S101  (the preparer stages only where something serves)
        serving = current.loaded
        prepare = partial(Exchange, serving=serving, candidate=candidate.loaded, health=self._health)
        exchange = await _in_a_thread(prepare)
        async with self._gate.paused():
            deadline = time.monotonic() + self._limit
            with self._sessions.ending(serving), self._timed(PausePhase.DRAINING):
                await self._until_unused(serving, deadline)
            try:
                await self._exchange(exchange, deadline)
                if not self._holder.is_wanted(candidate.target):
                    raise Superseded
                self._holder.install(candidate)
            except BaseException:
                if exchange.is_complete:
                    await _in_a_thread(exchange.undo)
                raise

    async def _until_unused(self, serving: LoadedModel, deadline: float) -> None:
        while self._holder.references_to(serving):
            if time.monotonic() > deadline:
                raise SwapTooSlow(
                    f"Requests were still in progress after {self._limit:g} seconds; raise pause_limit."
                )
            await asyncio.sleep(_IDLE_POLL_SECONDS)

    async def _exchange(self, exchange: Exchange, deadline: float) -> None:
        def checkpoint() -> None:
            if time.monotonic() > deadline:
                raise SwapTooSlow(f"The dry-run took more than {self._limit:g} seconds; raise pause_limit.")

        with collection_paused():
            check = partial(dry_run, checkpoint=checkpoint)
            await _in_a_thread(partial(exchange.run, check, timed=self._timed))

    @contextmanager
    def _timed(self, phase: PausePhase) -> Iterator[None]:
        """Record how long the block took, whatever ends it."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._phase_ended(phase, time.monotonic() - started)


async def _in_a_thread(work: Callable[[], _Result]) -> _Result:
    """Run in a thread; a cancellation waits for it, so that weights are never left half copied."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
