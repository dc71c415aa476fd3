"""`weightshift target`: what should be served."""

from weightshift.cli.context import Context
from weightshift.cli.options import ENVIRONMENT, REGISTRY, Commands, add_command, add_group
from weightshift.cli.output import table
from weightshift.contracts.identity import Cohort


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "target", "what should be served")
    add_command(
        commands,
        "show",
        show,
        "show both cohorts' targets",
        positionals=["model"],
        options=(ENVIRONMENT, *REGISTRY),
    )


async def show(context: Context) -> int:
    """Show both cohorts' targets."""
    async with context.connections.registry(context.arguments) as registry:
        targets = await registry.targets(context.service)
    rows = [
        (cohort, target.revision, target.artifact_id, target.serve_floor, target.manifest_sha256)
        for cohort in Cohort
        if (target := targets.of(cohort)) is not None
    ]
    columns = ("COHORT", "REVISION", "ARTIFACT", "SERVE FLOOR", "MANIFEST")
    context.output.result(targets, table(columns, rows, empty=f"nothing is published for {context.service}"))
    return 0
