"""`weightshift demo`: four releases under checked traffic, on a local stack of their own."""

import json
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.status import Status

from weightshift.cli.context import Context
from weightshift.cli.local import overview
from weightshift.cli.options import DIRECTORY, Commands, Option, add_command
from weightshift.cli.output import Output
from weightshift.cli.release_view import StepLog
from weightshift.contracts.release import ReleaseStatus

if TYPE_CHECKING:
    from weightshift.local.demo_report import DemoFigures

_KEEP = Option(
    ("--keep",), "WEIGHTSHIFT_DEMO_KEEP", "leave the stack up at the end", default=False, switch=True
)
_FIGURES_FILE = Option(
    ("--json",),
    "WEIGHTSHIFT_DEMO_JSON",
    "also write the figures to this file",
    parse=Path,
    attribute="figures_file",
)
_SUBDIRECTORY = "demo"


def add_commands(groups: Commands) -> None:
    """Declare the command."""
    add_command(
        groups,
        "demo",
        demo,
        "watch four releases under checked traffic; takes about three minutes",
        options=(_KEEP, _FIGURES_FILE),
        common=(DIRECTORY,),
    )


async def demo(context: Context) -> int:
    """Run the demonstration; 0 only if nothing was lost and every release ended as announced."""
    from weightshift.local import control  # noqa: PLC0415 - heavy, and only this command needs it
    from weightshift.local.demo import run_demo  # noqa: PLC0415
    from weightshift.local.demo_report import report_table  # noqa: PLC0415

    arguments, output = context.arguments, context.output
    # A directory of its own, because every demonstration begins by emptying it.
    directory = arguments.dir / _SUBDIRECTORY
    output.line(f"starting the local stack in {directory} and training five models: a minute or so")
    if arguments.keep:
        output.line(
            f"should it be interrupted, end the stack with `weightshift local down --dir {directory}`"
        )
    with LiveDemo(output) as view:
        figures = await run_demo(directory=directory, keep=arguments.keep, view=view)
    if arguments.figures_file is not None:
        _write(figures, arguments.figures_file)
    for failure in figures.traffic["failures"]:
        output.line(failure)
    output.console.print(report_table(figures))
    output.line(figures.line())
    if arguments.keep:
        output.console.print(overview(control.status(directory)))
        output.line(f"look around with `weightshift release list ranker -e local --dir {directory}`")
        output.line(f"end the stack with `weightshift local down --dir {directory}`")
    return 0 if figures.ok else 1


def _write(figures: "DemoFigures", path: Path) -> None:
    content = figures.summary() | {"ok": figures.ok} | figures.model_dump(mode="json")
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class LiveDemo:
    """Prints the story line by line, above one live line about the traffic on a terminal."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._log = StepLog()
        self._live = Status("no traffic yet", console=output.console) if output.console.is_terminal else None

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

    def note(self, text: str) -> None:
        """Print one line of the story."""
        self._output.line(text)

    def status(self, status: ReleaseStatus) -> None:
        """Print what is new in a release."""
        for line in self._log.new_lines(status):
            self._output.line(f"  {status.artifact_id}  {line}")

    def traffic(self, figures: dict[str, Any]) -> None:
        """Update the live line."""
        if self._live is not None:
            arms = ", ".join(f"{name} {arm['requests']:,}" for name, arm in figures["artifacts"].items())
            self._live.update(
                f"{figures['requests']:,} requests ({arms}), {figures['failed']} failed, "
                f"{figures['misrouted']} misrouted"
            )
