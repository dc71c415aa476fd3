"""`weightshift release`: start a release, follow it, steer it."""

from weightshift.cli.approve import OPTIONS as APPROVE_OPTIONS
from weightshift.cli.approve import approve
from weightshift.cli.context import Context
from weightshift.cli.follow import follow
from weightshift.cli.newest import newest_status
from weightshift.cli.options import (
    ENVIRONMENT,
    OPERATOR,
    REASON,
    REGISTRY,
    TEMPORAL,
    Commands,
    add_command,
    add_group,
    operator_of,
)
from weightshift.cli.output import table
from weightshift.cli.release_view import (
    describe,
    headline,
    record_rows,
    with_refused,
)
from weightshift.cli.report import OPTIONS as REPORT_OPTIONS
from weightshift.cli.report import report
from weightshift.cli.rollback import OPTIONS as ROLLBACK_OPTIONS
from weightshift.cli.rollback import rollback
from weightshift.cli.start import OPTIONS as START_OPTIONS
from weightshift.cli.start import start
from weightshift.contracts.release import (
    Intervention,
    Parachute,
    ReleasePhase,
    ReleaseRecord,
    ReleaseStatus,
)
from weightshift.errors import TemporalUnreachable, WeightshiftError
from weightshift.way_back import way_back_now


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "release", "start a release, follow it, steer it")
    where = (ENVIRONMENT, *TEMPORAL)
    add_command(
        commands,
        "start",
        start,
        "release an artifact",
        positionals=["model", "artifact"],
        options=START_OPTIONS,
    )
    for name, handler, summary, options in (
        ("status", status, "show the newest release", (*where, *REGISTRY)),
        ("watch", watch, "follow the active release to its end, on through a hold", where),
    ):
        add_command(commands, name, handler, summary, positionals=["model"], options=options)
    for name, handler, summary in (
        ("pause", pause, "stay at the current stage"),
        ("resume", resume, "go on after a pause"),
        ("promote", promote, "skip the rest of the current window"),
    ):
        steering = (OPERATOR, REASON, *where)
        add_command(commands, name, handler, summary, positionals=["model"], options=steering)
    _add_decisions(commands)
    _add_records(commands)


def _add_decisions(commands: Commands) -> None:
    add_command(
        commands,
        "approve",
        approve,
        "approve the running release, or one to be started",
        positionals=["model"],
        options=APPROVE_OPTIONS,
    )
    add_command(
        commands,
        "rollback",
        rollback,
        "take all traffic back now",
        positionals=["model"],
        options=ROLLBACK_OPTIONS,
    )


def _add_records(commands: Commands) -> None:
    add_command(
        commands,
        "list",
        show_all,
        "list a model's releases",
        positionals=["model"],
        options=(ENVIRONMENT, *TEMPORAL, *REGISTRY),
    )
    add_command(
        commands,
        "report",
        report,
        "show what a release did, from its evidence",
        positionals=["release"],
        options=REPORT_OPTIONS,
    )


async def status(context: Context) -> int:
    """Show the newest release."""
    client = await context.connections.releases(context.arguments)
    found = await newest_status(client, context.service)
    if found.parachute is not None:
        found = found.model_copy(update={"way_back": await _way_back(context, found.parachute)})
    context.output.result(found, describe(found))
    return 0


async def _way_back(context: Context, parachute: Parachute) -> str:
    """Return what going back costs now. A rollback trusts a parachute that nobody can speak for."""
    try:
        async with context.connections.registry(context.arguments) as registry:
            return way_back_now(parachute, await registry.instances(context.service))
    except WeightshiftError as error:
        context.output.warning(f"whether the parachute is whole is not known: {error}")
        return "instant"


async def watch(context: Context) -> int:
    """Follow the active release to its end, also while it is held: people may watch until it moves again."""
    return await follow(context, await context.connections.releases(context.arguments), ends_when_held=False)


async def pause(context: Context) -> int:
    """Stay at the current stage."""
    client = await context.connections.releases(context.arguments)
    return _acknowledge(context, await client.pause(context.service, _by(context)), "it stays at this stage")


async def resume(context: Context) -> int:
    """Go on after a pause."""
    client = await context.connections.releases(context.arguments)
    return _acknowledge(context, await client.resume(context.service, _by(context)), "it goes on")


async def promote(context: Context) -> int:
    """Skip the rest of the current window."""
    client = await context.connections.releases(context.arguments)
    found = await client.promote(context.service, _by(context))
    window = "parachute" if found.phase is ReleasePhase.PARACHUTE else f"window at {found.stage_weight} %"
    return _acknowledge(context, found, f"the rest of the {window} is skipped")


def _by(context: Context) -> Intervention:
    return Intervention(operator=operator_of(context), reason=context.arguments.reason)


def _acknowledge(context: Context, found: ReleaseStatus, effect: str) -> int:
    context.output.result(found, f"{headline(found)}; {effect}")
    return 0


async def show_all(context: Context) -> int:
    """List a model's releases, newest first."""
    async with context.connections.registry(context.arguments) as registry:
        records = with_refused(await registry.releases(context.service), await _refused(context))
    columns = ("RELEASE", "ARTIFACT", "OUTCOME", "OPERATOR", "STARTED", "FINISHED", "REASON")
    empty = f"no release of {context.service} is recorded"
    context.output.result({"releases": records}, table(columns, record_rows(records), empty=empty))
    return 0


async def _refused(context: Context) -> tuple[ReleaseRecord, ...]:
    """Return what was refused at admission; the list is worth something without it."""
    try:
        client = await context.connections.releases(context.arguments)
        return await client.refused(context.service)
    except TemporalUnreachable as error:
        context.output.warning(f"releases that were refused at admission are not listed: {error}")
        return ()
