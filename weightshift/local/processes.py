"""One child process: started, awaited, stopped, killed, and never outliving its supervisor."""

import asyncio
import os
import pwd
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from weightshift.errors import LocalStackError
from weightshift.local.ports import HOST

POLL_INTERVAL = 0.02
_PROBE_TIMEOUT = 1.0
_TAIL_LINES = 20
_DAC_READ_SEARCH = 1 << 2
_SETPCAP = 1 << 8
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")
_PORT_TAKEN = ("address already in use", "address in use", "errno 98")


class PortTaken(LocalStackError):
    """A server could not bind its port, because another program took it first."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """How to run one process. Deadlines in seconds; `ready` is polled until it returns true."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[], Awaitable[bool]]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    run_as: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    start_deadline: float = 30.0
    stop_deadline: float = 10.0


class ManagedProcess:
    """A process in its own session, its output in a log file.

    The kernel kills it when the thread that started it ends, so a supervisor that dies by SIGKILL
    leaves nothing behind; start it from the main thread.
    """

    def __init__(self, *, spec: ProcessSpec, directory: Path) -> None:
        self._spec = spec
        self._directory = directory
        self._log = directory / "logs" / f"{spec.name}.log"
        self._log_start = 0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self, *, added: Mapping[str, str] = MappingProxyType({})) -> None:
        """Run it, with variables `added` for this run, and wait until it is ready.

        Raises `LocalStackError` with the end of its log.
        """
        if self.pid is not None:
            raise LocalStackError(f"{self._spec.name} runs already; stop it before starting it")
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *guarded(self._spec.command, run_as=self._spec.run_as),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**_environment(self._spec), **added},
                cwd=self._directory,
                start_new_session=True,
            )
        try:
            await self.wait_ready()
        except BaseException:
            await self.kill()
            raise

    async def wait_ready(self) -> None:
        """Wait until it answers. Raises `LocalStackError` when it ends or the deadline passes."""
        try:
            async with asyncio.timeout(self._spec.start_deadline):
                while not await self._spec.ready():
                    self._require_running()
                    await asyncio.sleep(POLL_INTERVAL)
                self._require_running()
        except TimeoutError:
            raise self._failure(f"is not ready after {self._spec.start_deadline:g} s") from None

    async def stop(self) -> None:
        """Ask it to end, and kill it when the deadline passes. Harmless when it does not run."""
        self._send(self._spec.stop_signal)
        if self._process is None:
            return
        try:
            async with asyncio.timeout(self._spec.stop_deadline):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def wait_ended(self) -> int:
        """Wait until it ends by itself, and return its exit status. Raises `LocalStackError`."""
        if self._process is None:
            raise LocalStackError(f"{self._spec.name} was never started")
        return await self._process.wait()

    async def kill(self) -> None:
        """End it with SIGKILL and wait until it is gone. Harmless when it does not run."""
        self._send(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def log_tail(self) -> str:
        """Return the last lines it wrote since its last start."""
        if not self._log.exists():
            return ""
        with self._log.open(errors="replace") as file:
            file.seek(self._log_start)
            return "".join(deque(file, maxlen=_TAIL_LINES)).rstrip()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self.pid is not None:
            self._process.send_signal(number)

    def _open_log(self) -> BinaryIO:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        log = self._log.open("ab")
        self._log_start = log.tell()
        return log

    def _require_running(self) -> None:
        if self._process is not None and self.pid is None:
            raise self._failure(f"ended with status {self._process.returncode} before it was ready")

    def _failure(self, what: str) -> LocalStackError:
        tail = self.log_tail()
        taken = any(sign in tail.lower() for sign in _PORT_TAKEN)
        kind = PortTaken if taken else LocalStackError
        return kind(f"{self._spec.name} {what}; see {self._log}, which ends with:\n{tail}")


@asynccontextmanager
async def running(process: ManagedProcess) -> AsyncIterator[ManagedProcess]:
    """Run a process for the length of a `with` block."""
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def guarded(command: Sequence[str], *, run_as: str | None = None) -> tuple[str, ...]:
    """Return the command that runs another one so that the kernel ends it with the calling thread.

    With `run_as`, as another user who may still pass through every directory on the way to its files.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LocalStackError("setpriv is not installed; install util-linux, the local stack needs Linux")
    user: tuple[str, ...] = ()
    if run_as is not None:
        user = ("--reuid", run_as, "--regid", str(pwd.getpwnam(run_as).pw_gid), "--clear-groups", *_passage())
    return (setpriv, *user, "--pdeathsig", "KILL", "--", *command)


def _passage() -> tuple[str, ...]:
    """Return the options that let another user through directories which only root may enter."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    )
    ours = int(line.split()[1], 16)
    # The smaller one where it is at hand; containers often lack it.
    opens = "+dac_read_search" if ours & _DAC_READ_SEARCH else "+dac_override"
    options = ("--inh-caps", opens, "--ambient-caps", opens)
    # Programs that ask before they open (`access`, as PostgreSQL does for its own) are otherwise told no.
    return (*options, "--securebits", "+no_setuid_fixup") if ours & _SETPCAP else options


def python_module(module: str) -> tuple[str, ...]:
    """Return the command that runs one of our own modules."""
    return (sys.executable, "-m", module)


def answers(port: int, path: str, *, statuses: tuple[int, ...] = (200,)) -> Callable[[], Awaitable[bool]]:
    """Return a readiness check: whether a GET is answered with one of `statuses` on a loopback port."""

    async def check() -> bool:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                return await _status(port, path) in statuses
        except (OSError, ValueError, TimeoutError):
            return False

    return check


async def _status(port: int, path: str) -> int:
    """Return the status of one GET. Raises `ValueError` when the answer is not HTTP."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        version, _, rest = (await reader.readline()).partition(b" ")
        if not version.startswith(b"HTTP/"):
            raise ValueError("not an HTTP answer")
        return int(rest[:3])
    finally:
        writer.close()


def _environment(spec: ProcessSpec) -> dict[str, str]:
    """Pass on only what a server needs: no stray credentials, no proxies between loopback addresses."""
    inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    return {**inherited, **spec.environment}
