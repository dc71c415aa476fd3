"""Live progress of an upload: a bar on a terminal, nothing elsewhere."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from weightshift.cli.output import Output


class UploadProgress:
    """Shows how many of `total` bytes are stored; a context manager, because it owns the terminal."""

    def __init__(self, output: Output, *, total: int) -> None:
        on_terminal = output.console.is_terminal and not output.json
        self._bar = Progress(
            TextColumn("storing"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=output.console,
            disable=not on_terminal,
        )
        self._task = self._bar.add_task("storing", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, count: int) -> None:
        """Add bytes that are stored."""
        self._bar.advance(self._task, count)
