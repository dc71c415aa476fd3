"""The moment of an in-place swap: requests wait, what is in progress ends, the weights change places."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from runtime.collection_pause import collection_paused
from runtime.device_health import DeviceHealth
from runtime.dry_run import dry_run
from runtime.generation_holder import Generation, GenerationHolder, LoadedModel
from runtime.in_place import Exchange
from runtime.pause import PauseGate
from runtime.sessions import Sessions
from weightshift.errors import Superseded, SwapTooSlow

_IDLE_POLL_SECONDS = 0.0005
_Result = TypeVar("_Result")


class InPlaceSwapper:
    """Swaps a staged candidate into the storage of what serves. Belongs to the event loop's thread.

    Requests wait at `gate` for at most about `limit` seconds. Sessions on the replaced weights end with a
    typed event, since what they have computed is worth nothing under others.
    """

    def __init__(
        self,
        *,
        holder: GenerationHolder,
        gate: PauseGate,
        sessions: Sessions,
        health: DeviceHealth,
        limit: float,
    ) -> None:
        self._holder = holder
        self._gate = gate
        self._sessions = sessions
        self._health = health
        self._limit = limit

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
            with self._sessions.ending(serving):
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
            await _in_a_thread(lambda: exchange.run(lambda loaded: dry_run(loaded, checkpoint=checkpoint)))


async def _in_a_thread(work: Callable[[], _Result]) -> _Result:
    """Run in a thread; a cancellation waits for it, so that weights are never left half copied."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
