"""Live progress of a release: a panel on a terminal, a line for each step elsewhere."""

from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.live import Live

from weightshift.cli.output import Output
from weightshift.cli.release_view import JudgingLog, StepLog, describe, headline, next_step
from weightshift.contracts.release import ReleaseStatus
from weightshift.errors import WeightshiftError


class ReleaseHeld(WeightshiftError):
    """The release is held: there is not enough evidence to go on or back."""

    exit_code = 6

    def __init__(self, status: ReleaseStatus) -> None:
        super().__init__(f"{headline(status)} (held)")
        self.status = status


class ReleaseProgress:
    """Shows every status it is given; a context manager, because it may own the terminal."""

    def __init__(self, output: Output, *, ends_when_held: bool = True) -> None:
        """Take where to show it, and whether to end when nothing moves until a person decides."""
        self._output = output
        self._ends_when_held = ends_when_held
        self._was_held = False
        self._log = StepLog()
        self._judging = JudgingLog()
        on_terminal = output.console.is_terminal and not output.json
        self._live = Live(console=output.console, auto_refresh=False) if on_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: ReleaseStatus) -> None:
        """Show a status. Raises `ReleaseHeld` for a held one, where holding is the end."""
        if self._live is not None:
            self._live.update(describe(status), refresh=True)
        else:
            for line in self._log.new_lines(status):
                self._output.line(line)
            if (line_of_judge := self._judging.new_line(status, datetime.now(UTC))) is not None:
                self._output.line(line_of_judge)
        is_held = status.held and status.outcome is None
        if is_held and self._ends_when_held:
            raise ReleaseHeld(status)
        if is_held and not self._was_held:
            self._output.line(f"held; {next_step(status)}")
        self._was_held = is_held
