"""`weightshift audit`: what happened, from the append-only chain."""

from datetime import datetime
from pathlib import Path

from pydantic import ValidationError
from rich.console import RenderableType

from weightshift.cli.context import Context
from weightshift.cli.options import ENVIRONMENT, REGISTRY, Commands, Option, add_command, add_group
from weightshift.cli.output import table
from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow
from weightshift.errors import InvalidInput


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("add a time zone, as in 2026-01-02T03:04:05Z")
    return moment


_FILTERS = (
    Option(("--release",), "WEIGHTSHIFT_RELEASE", "only the rows of this release"),
    Option(("--operator",), "WEIGHTSHIFT_AUDIT_OPERATOR", "only what this person did"),
    Option(("--since",), "WEIGHTSHIFT_AUDIT_SINCE", "only from this moment on", parse=_moment),
    Option(("--until",), "WEIGHTSHIFT_AUDIT_UNTIL", "only before this moment", parse=_moment),
    Option(("--after",), "WEIGHTSHIFT_AUDIT_AFTER", "only rows after this number", default=0, parse=int),
    Option(("--limit",), "WEIGHTSHIFT_AUDIT_LIMIT", "rows to show, at most 1000", default=200, parse=int),
)
_HEAD = Option(
    ("--head",),
    "WEIGHTSHIFT_AUDIT_HEAD",
    "file with a head exported earlier by `audit head --json`, which the chain must still hold",
    parse=Path,
)


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "audit", "what happened, from the append-only chain")
    add_command(
        commands,
        "show",
        show,
        "show the audit rows of a model, oldest first",
        positionals=["model"],
        options=(ENVIRONMENT, *_FILTERS, *REGISTRY),
    )
    add_command(
        commands,
        "verify",
        verify,
        "check an environment's whole chain and name the first broken row",
        options=(ENVIRONMENT, _HEAD, *REGISTRY),
    )
    add_command(
        commands,
        "head",
        head,
        "show the newest row's number and hash, to keep them elsewhere",
        options=(ENVIRONMENT, *REGISTRY),
    )


async def show(context: Context) -> int:
    """Show one page of a model's audit rows, oldest first."""
    arguments = context.arguments
    query = AuditQuery(
        environment=arguments.environment,
        model=arguments.model,
        release_id=arguments.release,
        operator=arguments.operator,
        since=arguments.since,
        until=arguments.until,
        after=arguments.after,
        limit=arguments.limit,
    )
    async with context.connections.registry(arguments) as registry:
        rows = await registry.audit_page(query)
    context.output.result({"rows": rows}, _as_table(rows, f"no such audit row of {context.service}"))
    if len(rows) == query.limit:
        context.output.line(f"there may be more: add --after {rows[-1].sequence}")
    return 0


def _as_table(rows: tuple[AuditRow, ...], empty: str) -> RenderableType:
    columns = ("NUMBER", "RECORDED", "STEP", "OPERATOR", "SUMMARY", "HASH")
    cells = [
        (
            row.sequence,
            row.recorded_at.isoformat(timespec="milliseconds"),
            row.step,
            row.operator,
            row.summary,
            row.hash[:12],
        )
        for row in rows
    ]
    return table(columns, cells, empty=empty)


async def verify(context: Context) -> int:
    """Walk an environment's chain; the exit code is 1 when a row is broken."""
    from weightshift.registry.verify import verify_chain  # noqa: PLC0415 - only this command needs it

    arguments = context.arguments
    known = _exported_head(arguments.head) if arguments.head else None
    async with context.connections.registry(arguments) as registry:
        found = await verify_chain(registry.audit_page, arguments.environment, known=known)
    if isinstance(found, AuditHead):
        text = (
            f"the chain of {arguments.environment} is whole: {found.sequence} rows, head {found.hash}"
            if found.sequence
            else f"nothing is recorded in {arguments.environment}; check the environment's name"
        )
        context.output.result({"whole": True, "head": found}, text)
        return 0
    text = f"the chain of {arguments.environment} is broken at row {found.sequence}: {found.problem}"
    context.output.result({"whole": False, "broken": found}, text)
    return 1


def _exported_head(file: Path) -> AuditHead:
    try:
        return AuditHead.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"head: {file} cannot be read ({error.strerror}); choose another.") from error
    except ValidationError as error:
        raise InvalidInput(
            f"head: {file} is not what `weightshift audit head --json` prints; choose another."
        ) from error


async def head(context: Context) -> int:
    """Show the newest row's number and hash."""
    async with context.connections.registry(context.arguments) as registry:
        found = await registry.audit_head(context.arguments.environment)
    context.output.result(found, f"{found.environment} row {found.sequence} {found.hash}")
    return 0
