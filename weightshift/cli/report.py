"""`weightshift release report`: what a release did, as text, JSON or one HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weightshift.cli.context import Context
from weightshift.cli.options import ENVIRONMENT, REGISTRY, Option
from weightshift.errors import InvalidInput, Unauthorised

if TYPE_CHECKING:
    from weightshift.report.document import ReleaseReport, ReportedApproval

OPTIONS = (
    Option(("--html",), "WEIGHTSHIFT_REPORT_HTML", "write one self-contained page to this file", parse=Path),
    Option(
        ("--model",), "WEIGHTSHIFT_MODEL", "the release's model, where the token does not cover every model"
    ),
    Option(
        ("--prometheus-url",),
        "WEIGHTSHIFT_METRICS_PROMETHEUS_URL",
        "address of Prometheus; without it the report shows what was judged",
    ),
    ENVIRONMENT,
    *REGISTRY,
)


async def report(context: Context) -> int:
    """Show what a release did, and with `--html` write it as a page."""
    from weightshift.report.collect import collect  # noqa: PLC0415 - only this command needs it

    arguments = context.arguments
    async with context.connections.registry(arguments) as registry:
        try:
            found = await collect(
                arguments.release,
                environment=arguments.environment,
                model=arguments.model,
                records=registry,
                history=context.connections.history(arguments),
            )
        except Unauthorised as error:
            raise Unauthorised(f"{error} Or add --model.") from error
    written = [] if arguments.html is None else [Text(f"the page is in {_write(arguments.html, found)}")]
    context.output.result(found, _describe(found), *written)
    return 0


def _write(path: Path, found: "ReleaseReport") -> Path:
    """Write the page. Raises `InvalidInput` where it cannot be drawn or written."""
    try:
        from weightshift.report.page import render  # noqa: PLC0415 - heavy, and an extra
    except ImportError as error:
        raise InvalidInput(
            f"html: {error.name} is not installed; pip install 'weightshift[report]'."
        ) from error
    try:
        path.write_text(render(found), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"html: {path} cannot be written: {error.strerror}.") from error
    return path


def _describe(found: "ReleaseReport") -> RenderableType:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    for name, value in _facts(found):
        facts.add_row(name, Text(value))
    steps = [Text(f"{step.at.astimezone():%H:%M:%S}  {step.text}", style="dim") for step in found.steps]
    return Group(facts, *steps)


def _facts(found: "ReleaseReport") -> Sequence[tuple[str, str]]:
    replaces = f" in place of {found.replaces}" if found.replaces else ""
    return [
        ("release", f"{found.release_id}  {found.service}  {found.artifact_id}{replaces}"),
        ("outcome", f"{found.outcome or 'running'}{f': {found.reason}' if found.reason else ''}"),
        ("who", found.operator),
        ("why", found.why or "no reason was given"),
        ("duration", f"{found.duration_seconds:.1f} s from {found.started_at.isoformat(timespec='seconds')}"),
        ("way back", found.way_back),
        *(("approved", _approved(approval)) for approval in found.approvals),
        *((f"{stage.weight} %", f"{stage.outcome}: {stage.reason}") for stage in found.stages),
        *(("note", note) for note in found.notes),
    ]


def _approved(approval: "ReportedApproval") -> str:
    when = f" at {approval.at.isoformat(timespec='seconds')}" if approval.at else ""
    return f"{approval.of} by {approval.operator}{when}{f': {approval.reason}' if approval.reason else ''}"
