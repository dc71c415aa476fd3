"""`weightshift audit`: what happened, from the append-only chain."""

from weightshift.cli.context import Context
from weightshift.cli.options import ENVIRONMENT, REGISTRY, Commands, Option, add_command, add_group
from weightshift.cli.output import table

_RELEASE = Option(("--release",), "WEIGHTSHIFT_RELEASE", "only the rows of this release")


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "audit", "what happened, from the append-only chain")
    add_command(
        commands,
        "show",
        show,
        "show the audit chain of a model",
        positionals=["model"],
        options=(ENVIRONMENT, _RELEASE, *REGISTRY),
    )


async def show(context: Context) -> int:
    """Show the audit chain of a model, oldest row first."""
    async with context.connections.registry(context.arguments) as registry:
        chain = await registry.audit(context.service, release_id=context.arguments.release)
    columns = ("NUMBER", "RECORDED", "STEP", "OPERATOR", "SUMMARY", "HASH")
    rows = [
        (
            row.sequence,
            row.recorded_at.isoformat(timespec="milliseconds"),
            row.step,
            row.operator,
            row.summary,
            row.hash[:12],
        )
        for row in chain
    ]
    context.output.result({"rows": chain}, table(columns, rows, empty=f"no audit row of {context.service}"))
    return 0
