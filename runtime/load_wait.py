"""Waiting for a load, which may hang: in a model's own code, or on a disk."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

from runtime.generation_holder import LoadedModel
from weightshift.errors import Superseded


async def wait_for_load(
    loading: "Future[LoadedModel]",
    *,
    wake: asyncio.Event,
    is_pointless: Callable[[], bool],
    drop: Callable[[LoadedModel], None],
) -> LoadedModel:
    """Return what a load returns, and raise what it raises.

    Whenever `wake` is set, `is_pointless` is asked whether to wait any longer; `wake` is set again at the
    end for whoever waits for it next. Raises `Superseded` when nobody needs the load any more; `drop` gets
    what it returns all the same, in the loading thread.
    """
    outcome = asyncio.wrap_future(loading)
    was_woken = False
    try:
        while not outcome.done():
            woken = asyncio.create_task(wake.wait())
            await asyncio.wait((outcome, woken), return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
            if outcome.done():
                break
            was_woken = True
            wake.clear()
            if is_pointless():
                loading.add_done_callback(lambda late: _drop(late, drop))
                raise Superseded
        return outcome.result()
    finally:
        outcome.cancel()
        if was_woken:
            wake.set()


def _drop(loading: "Future[LoadedModel]", drop: Callable[[LoadedModel], None]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        drop(loading.result())
