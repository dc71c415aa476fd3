import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from weightshift.errors import LocalStackError
from weightshift.local.identity import ProcessIdentity, identity_of, own_identity
from weightshift.local.processes import ManagedProcess, PortTaken, ProcessSpec, answers, guarded, running

READY_FILE = "import pathlib, signal, sys, time; {setup}; pathlib.Path('ready').touch(); time.sleep(60)"


def managed(directory: Path, script: str, *, start: float = 10.0, stop: float = 10.0) -> ManagedProcess:
    spec = ProcessSpec(
        name="subject",
        command=(sys.executable, "-c", script),
        ready=file_exists(directory / "ready"),
        start_deadline=start,
        stop_deadline=stop,
    )
    return ManagedProcess(spec=spec, directory=directory)


def file_exists(path: Path) -> Callable[[], Awaitable[bool]]:
    return lambda: asyncio.to_thread(path.exists)


async def test_it_runs_until_it_is_stopped(tmp_path: Path) -> None:
    process = managed(tmp_path, READY_FILE.format(setup="pass"))
    async with running(process):
        assert process.pid is not None
        pid = process.pid
        assert identity_of(pid) is not None
        with pytest.raises(LocalStackError, match="runs already"):
            await process.start()
    assert identity_of(pid) is None


async def test_one_that_ends_early_shows_its_last_words(tmp_path: Path) -> None:
    process = managed(tmp_path, "import sys; print('no licence'); sys.exit(3)")
    with pytest.raises(LocalStackError, match=r"(?s)subject ended with status 3.*no licence"):
        await process.start()


async def test_only_the_words_of_this_start_are_shown(tmp_path: Path) -> None:
    first = managed(tmp_path, "print('the first failure')")
    with pytest.raises(LocalStackError, match="the first failure"):
        await first.start()
    second = managed(tmp_path, "print('the second failure')")
    with pytest.raises(LocalStackError) as caught:
        await second.start()
    assert "the first failure" not in str(caught.value)


async def test_one_that_is_never_ready_is_killed(tmp_path: Path) -> None:
    process = managed(tmp_path, "print('thinking', flush=True); import time; time.sleep(60)", start=0.5)
    with pytest.raises(LocalStackError, match=r"(?s)not ready after 0\.5 s.*thinking"):
        await process.start()
    assert process.pid is None


async def test_one_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    setup = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    process = managed(tmp_path, READY_FILE.format(setup=setup), stop=0.1)
    await process.start()
    await process.stop()
    assert process.pid is None


async def test_stopping_what_does_not_run_is_harmless(tmp_path: Path) -> None:
    process = managed(tmp_path, "pass")
    await process.stop()
    await process.kill()


async def test_a_taken_port_is_told_apart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = managed(tmp_path, f"import socket; socket.create_server(('127.0.0.1', {port}))")
        with pytest.raises(PortTaken):
            await process.start()


async def test_the_environment_holds_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    process = managed(tmp_path, "import os; print(sorted(os.environ)); raise SystemExit(1)")
    with pytest.raises(LocalStackError) as caught:
        await process.start()
    assert "'PATH'" in str(caught.value)
    assert "AWS" not in str(caught.value)
    assert "PROXY" not in str(caught.value)


async def test_a_process_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = f"""
import asyncio, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_processes import READY_FILE, managed

async def main():
    process = managed(pathlib.Path({str(tmp_path)!r}), READY_FILE.format(setup="pass"))
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", supervisor, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = identity_of(int(await parent.stdout.readline()))
    assert child is not None
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(5):
        while child.is_alive:
            await asyncio.sleep(0.01)


async def test_readiness_is_an_http_status() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 401 Unauthorized\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await answers(port, "/", statuses=(200, 401))()
        assert not await answers(port, "/")()
    assert not await answers(port, "/")()


def test_a_reused_process_id_is_another_process() -> None:
    own = own_identity()
    assert own.is_alive
    assert not ProcessIdentity(pid=own.pid, started=own.started + 1).is_alive


def test_the_remains_of_a_process_are_not_alive() -> None:
    pid = os.posix_spawn("/bin/sleep", ("sleep", "60"), os.environ)
    identity = identity_of(pid)
    assert identity is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive
    os.waitpid(pid, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a program as somebody else")
def test_another_user_may_ask_for_programs_behind_a_directory_of_root(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    shutil.copy("/bin/true", private / "program")
    asks = f"import os; print(os.getuid(), os.access({str(private / 'program')!r}, os.X_OK))"
    command = guarded((sys.executable, "-c", asks), run_as="nobody")
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == [str(pwd.getpwnam("nobody").pw_uid), "True"]
