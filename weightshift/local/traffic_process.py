"""The load generator as its owner sees it: a child process that tells its figures."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from weightshift.errors import LocalStackError

_STOP_SECONDS = 15.0
_LONGEST_LINE = 1 << 20

Figures: TypeAlias = dict[str, Any]


class TrafficProcess:
    """Runs `python -m weightshift.local.traffic` for the length of an `async with` block."""

    def __init__(
        self,
        *,
        url: str,
        expectations: Path,
        seconds: float,
        rate: float,
        on_figures: Callable[[Figures], None],
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "weightshift.local.traffic", "--url", url),
            *("--expectations", str(expectations), "--seconds", str(seconds), "--rate", str(rate)),
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._on_figures = on_figures
        self.figures: Figures = {}

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            # Ctrl-C is for the owner, who ends the traffic in order and still gets its figures.
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def allow(self, artifact_id: str) -> None:
        """Let `artifact_id` answer from now on."""
        stdin = self._running().stdin
        if stdin is not None:
            stdin.write(json.dumps({"released": artifact_id}).encode() + b"\n")
            await stdin.drain()

    async def wait_for(self, condition: Callable[[Figures], bool], *, seconds: float) -> Figures:
        """Return the first figures that meet `condition`. Raises `LocalStackError` after `seconds`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: bool(self.figures) and condition(self.figures))
                return self.figures
        except TimeoutError as error:
            raise LocalStackError(
                f"traffic: not as expected after {seconds:g} s; last figures {self.figures}"
            ) from error

    async def stop(self) -> Figures:
        """End the traffic in order and return its final figures."""
        process = self._running()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        figures = await self.wait_for(lambda figures: bool(figures["final"]), seconds=_STOP_SECONDS)
        await process.wait()
        return figures

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise LocalStackError("traffic: it is not running; use it inside `async with`.")
        return self._process

    async def _read(self) -> None:
        stdout = self._running().stdout
        while stdout is not None and (line := await stdout.readline()):
            async with self._changed:
                self.figures = json.loads(line)
                self._on_figures(self.figures)
                self._changed.notify_all()
