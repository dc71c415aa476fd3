"""A supervisor hears whoever asks it to mend its stack, whatever comes of that."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.identity import Service
from weightshift.errors import LocalStackError
from weightshift.local import control, supervisor
from weightshift.local.identity import ProcessIdentity, own_identity
from weightshift.local.layout import choose_layout
from weightshift.local.processes import ManagedProcess, ProcessSpec
from weightshift.local.stack import LocalStack
from weightshift.local.state import MEND, StackState, read_state, write_state

DEADLINE = 30.0


class OneProcess(LocalStack):
    """A stack of which only the worker is there."""

    @property
    def names(self) -> tuple[str, ...]:
        return ("worker",)

    @property
    def environment(self) -> dict[str, str]:
        return {}

    async def up(self) -> None:
        spec = ProcessSpec(
            name="worker", command=(sys.executable, "-c", "import time; time.sleep(60)"), ready=is_ready
        )
        self._processes["worker"] = ManagedProcess(spec=spec, directory=self.directory)
        await self.start("worker")

    async def _wait_for_reports(self) -> None:
        pass


async def is_ready() -> bool:
    return True


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def supervised(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Task[None]]:
    """Supervise a stack whose worker was killed; the block gets the supervisor."""
    monkeypatch.setattr(supervisor, "LocalStack", OneProcess)
    supervising = asyncio.create_task(supervisor.supervise(directory))
    try:
        await until(lambda: supervising.done() or control.status(directory).running)
        state = read_state(directory)
        assert state is not None
        os.kill(state.processes["worker"].pid, signal.SIGKILL)
        await until(lambda: not control.status(directory).processes["worker"])
        yield supervising
    finally:
        if not supervising.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait([supervising])
        for number in (signal.SIGTERM, signal.SIGINT, MEND):
            asyncio.get_running_loop().remove_signal_handler(number)


async def test_what_cannot_be_started_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    async with supervised(tmp_path, monkeypatch):
        logs.rename(tmp_path / "moved")
        logs.touch()
        with pytest.raises(LocalStackError, match="could not start: FileExistsError"):
            await asyncio.wait_for(control.up(tmp_path), DEADLINE)
        logs.unlink()
        found = await asyncio.wait_for(control.up(tmp_path), DEADLINE)
        assert found.processes == {"worker": True}


async def test_a_supervisor_that_cannot_write_down_its_state_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as supervising:

        def refuse(*_: object) -> None:
            raise OSError("no room")

        monkeypatch.setattr(supervisor, "write_state", refuse)
        (tmp_path / "logs/supervisor.log").touch()
        with pytest.raises(LocalStackError, match="ended without a word"):
            await asyncio.wait_for(control.up(tmp_path), DEADLINE)
        with pytest.raises(OSError, match="no room"):
            await supervising


def write_ended(directory: Path, supervising: ProcessIdentity, **fields: Any) -> None:
    """Write down a stack whose worker has ended."""
    ended = own_identity().model_copy(update={"started": -1})
    state = StackState(
        supervisor=supervising,
        service=Service(model="ranker", environment="local"),
        addresses=choose_layout(1, lambda count: range(20_000, 20_000 + count)).addresses,
        environment={},
        processes={"worker": ended},
        **fields,
    )
    write_state(directory, state)


async def test_a_supervisor_of_an_older_version_is_sent_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
    own = own_identity()
    (tmp_path / "supervisor.lock").write_text(own.model_dump_json())
    write_ended(tmp_path, own)
    with pytest.raises(LocalStackError, match="`local down`, then `local up`"):
        await asyncio.wait_for(control.up(tmp_path), DEADLINE)
    assert not sent


async def test_a_supervisor_that_ends_just_then_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_identity()
    (tmp_path / "supervisor.lock").write_text(own.model_dump_json())
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/supervisor.log").write_text("out of memory")
    write_ended(tmp_path, own, mended=0)

    def gone(*_: object) -> None:
        write_ended(tmp_path, own.model_copy(update={"started": -1}), mended=0)
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    with pytest.raises(LocalStackError, match="out of memory"):
        await asyncio.wait_for(control.up(tmp_path), DEADLINE)
