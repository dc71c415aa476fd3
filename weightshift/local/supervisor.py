"""Runs a local stack until it is told to stop (`python -m weightshift.local.supervisor --dir DIR`)."""

import argparse
import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from weightshift.errors import LocalStackError, WeightshiftError
from weightshift.local.identity import identity_of, own_identity
from weightshift.local.stack import LocalStack
from weightshift.local.state import LOCK, MEND, StackState, state_file, write_state


async def supervise(directory: Path, *, owner_pid: int | None = None) -> None:
    """Run the stack in `directory` until SIGTERM, SIGINT, or until the process `owner_pid` ends.

    `MEND` starts again what has ended.
    Raises `LocalStackError` when another supervisor has the directory, or the stack does not start.
    """
    with _only_one(directory):
        stop, mend = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(MEND, mend.set)
        with _watching(owner_pid, stop):
            stack = LocalStack(directory)
            try:
                if await _unless_stopped(stack.up(), stop):
                    state = _state(stack)
                    write_state(directory, state)
                    await _unless_stopped(_mend_when_asked(directory, stack, state, mend), stop)
            finally:
                state_file(directory).unlink(missing_ok=True)
                await stack.down()


async def _unless_stopped(work: Coroutine[None, None, None], stop: asyncio.Event) -> bool:
    """Do some work, and give it up at once when told to stop meanwhile; whether it is done."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        await working
        return True
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return False


async def _mend_when_asked(
    directory: Path, stack: LocalStack, state: StackState, asked: asyncio.Event
) -> None:
    """Start again what has ended as often as somebody asks, and publish the state that comes of it."""
    for mended in count(1):
        await asked.wait()
        asked.clear()
        failure = await _mend(stack)
        now = _state(stack)
        # What could not be started stays known, as ended.
        processes = {**state.processes, **now.processes}
        state = now.model_copy(update={"processes": processes, "mended": mended, "failure": failure})
        write_state(directory, state)


async def _mend(stack: LocalStack) -> str:
    """Start again what has ended; returns why that did not work, empty when it did."""
    try:
        await stack.mend()
    except WeightshiftError as error:
        return str(error)
    return ""


def _state(stack: LocalStack) -> StackState:
    pids = {name: stack.pid(name) for name in stack.names}
    identities = {name: identity_of(pid) for name, pid in pids.items() if pid is not None}
    return StackState(
        supervisor=own_identity(),
        service=stack.service,
        addresses=stack.addresses,
        environment=stack.environment,
        processes={name: identity for name, identity in identities.items() if identity is not None},
        mended=0,
    )


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, which the kernel releases however this process ends."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalStackError(f"{directory} has a running stack; stop it with `local down`") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, own_identity().model_dump_json().encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _watching(owner_pid: int | None, stop: asyncio.Event) -> Iterator[None]:
    """Stop as soon as the owner ends, however it ends."""
    if owner_pid is None:
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        owner = os.pidfd_open(owner_pid)
    except ProcessLookupError:
        raise LocalStackError(f"owner-pid: there is no process {owner_pid}; name a running one") from None
    loop.add_reader(owner, stop.set)
    try:
        yield
    finally:
        loop.remove_reader(owner)
        os.close(owner)


def main() -> int:
    """Run the supervisor; prints why the stack did not start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the stack keeps its state")
    parser.add_argument("--owner-pid", type=int, help="stop when this process ends")
    arguments = parser.parse_args()
    try:
        asyncio.run(supervise(arguments.dir.resolve(), owner_pid=arguments.owner_pid))
    except WeightshiftError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
