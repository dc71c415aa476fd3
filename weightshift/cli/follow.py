"""Following a release to its end, for every command that waits."""

import asyncio
from typing import TYPE_CHECKING

from weightshift.cli.context import Context
from weightshift.cli.progress import ReleaseHeld, ReleaseProgress
from weightshift.cli.release_view import EXIT_CODE_HELD, EXIT_CODES, headline, next_step
from weightshift.contracts.release import ReleaseStatus

if TYPE_CHECKING:
    from weightshift.client import ReleaseClient

_SILENCE_SECONDS = 10.0


async def follow(context: Context, client: "ReleaseClient", *, ends_when_held: bool, run_id: str = "") -> int:
    """Show a release, by default the newest one, until its outcome is known; return the exit code.

    With `ends_when_held` also only until nothing moves without a person, with the exit code for that.
    """
    answered = asyncio.Event()
    silence = asyncio.create_task(_warn_of_silence(context, answered))
    try:
        with ReleaseProgress(context.output, ends_when_held=ends_when_held) as progress:

            def show(status: ReleaseStatus) -> None:
                answered.set()
                progress.show(status)

            status = await client.wait(context.service, on_status=show, run_id=run_id)
    except ReleaseHeld as held:
        context.output.result(held.status, f"{headline(held.status)} (held)", next_step(held.status))
        return EXIT_CODE_HELD
    finally:
        silence.cancel()
    context.output.result(status, headline(status))
    return EXIT_CODES[status.outcome] if status.outcome is not None else 1


async def _warn_of_silence(context: Context, answered: asyncio.Event) -> None:
    """Say once that no worker answers; the release is kept, so whoever waits may go on waiting."""
    try:
        async with asyncio.timeout(_SILENCE_SECONDS):
            await answered.wait()
    except TimeoutError:
        context.output.warning(
            f"no worker has answered for {_SILENCE_SECONDS:g} s; `weightshift doctor` and the worker's log "
            "say why; the release goes on when one does"
        )
