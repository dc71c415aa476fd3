"""Starting, stopping and inspecting a supervised stack from another process."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Service
from weightshift.errors import LocalStackError
from weightshift.local.addresses import Addresses
from weightshift.local.identity import ProcessIdentity
from weightshift.local.state import MEND, read_state, read_supervisor

_START_TIMEOUT = 120.0
_STOP_TIMEOUT = 45.0
_POLL_INTERVAL = 0.05


class StackStatus(Message):
    """A stack as seen from outside. `processes` says of each whether it lives."""

    directory: str
    running: bool
    supervisor_pid: int | None = None
    service: Service | None = None
    addresses: Addresses | None = None
    processes: dict[str, bool] = Field(default_factory=dict)


async def up(directory: Path, owner_pid: int | None = None) -> StackStatus:
    """Start the stack in the background and wait until it is ready; of a running one, what has ended.

    With `owner_pid` it ends together with that process. Raises `LocalStackError` saying why it does
    not start.
    """
    child = None if read_supervisor(directory) else _launch(directory, owner_pid)
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            while not (found := status(directory)).running:
                if _has_ended(directory, child):
                    raise LocalStackError(_last_words(directory))
                await asyncio.sleep(_POLL_INTERVAL)
            while not all(found.processes.values()):
                found = await _mend(directory)
    except TimeoutError:
        raise LocalStackError(
            f"the stack in {directory} is not ready after {_START_TIMEOUT:g} s; see its logs"
        ) from None
    return found


async def _mend(directory: Path) -> StackStatus:
    """Have the supervisor start again what has ended, and wait. Raises `LocalStackError` saying why not."""
    before = state = read_state(directory)
    if before is not None:
        if before.mended is None:
            # The signal would end it.
            raise LocalStackError(
                f"an older version started the stack in {directory}; use `local down`, then `local up`"
            )
        with suppress(ProcessLookupError):
            os.kill(before.supervisor.pid, MEND)
    while state is not None and state == before:
        await asyncio.sleep(_POLL_INTERVAL)
        state = read_state(directory)
    if state is None:
        raise LocalStackError(_last_words(directory))
    if state.failure:
        raise LocalStackError(state.failure)
    return status(directory)


async def down(directory: Path) -> StackStatus:
    """Stop the stack and wait until everything has ended; harmless when none runs.

    Raises `LocalStackError` when it cannot be ended.
    """
    supervisor = read_supervisor(directory)
    # Killed by force, the supervisor takes the processes with it.
    if supervisor and not (await _end(supervisor, signal.SIGTERM) or await _end(supervisor, signal.SIGKILL)):
        raise LocalStackError(f"process {supervisor.pid}, the supervisor of {directory}, does not end")
    return status(directory)


def status(directory: Path) -> StackStatus:
    """Return whether a stack runs in `directory`, where it answers, and which processes live."""
    state = read_state(directory)
    if state is None:
        return StackStatus(directory=str(directory), running=False)
    return StackStatus(
        directory=str(directory),
        running=True,
        supervisor_pid=state.supervisor.pid,
        service=state.service,
        addresses=state.addresses,
        processes={name: identity.is_alive for name, identity in state.processes.items()},
    )


def stack_environment(directory: Path) -> dict[str, str]:
    """Return the variables that point the command line at a running stack, secrets included.

    Empty when none runs.
    """
    state = read_state(directory)
    return {} if state is None else state.environment


def _launch(directory: Path, owner_pid: int | None) -> int:
    """Start a supervisor in a session of its own, so that it outlives this process and its terminal."""
    log = directory / "logs/supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    owner = () if owner_pid is None else ("--owner-pid", str(owner_pid))
    return os.posix_spawn(
        sys.executable,
        (sys.executable, "-m", "weightshift.local.supervisor", "--dir", str(directory), *owner),
        os.environ,
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ),
        setsid=True,
    )


def _has_ended(directory: Path, child: int | None) -> bool:
    """Whether there is no supervisor to wait for; `child` is its id when this process started it."""
    if child is None:
        return read_supervisor(directory) is None
    ended, _ = os.waitpid(child, os.WNOHANG)
    return ended == child


def _last_words(directory: Path) -> str:
    log = directory / "logs/supervisor.log"
    return log.read_text(errors="replace").strip() or f"the supervisor ended without a word; see {log.parent}"


async def _end(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to a process and wait; whether it has ended."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_TIMEOUT):
            while process.is_alive:  # noqa: ASYNC110  (not a child: there is nothing to await)
                await asyncio.sleep(_POLL_INTERVAL)
    return not process.is_alive
