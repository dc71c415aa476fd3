"""`weightshift release`: start a release, follow it, steer it."""

from pathlib import Path

from ulid import ULID

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
    Option,
    add_command,
    add_group,
    operator_of,
)
from weightshift.cli.output import table
from weightshift.cli.plan_file import read_plan
from weightshift.cli.release_view import (
    EXIT_CODES,
    describe,
    headline,
    record_rows,
    with_refused,
)
from weightshift.cli.report import OPTIONS as REPORT_OPTIONS
from weightshift.cli.report import report
from weightshift.cli.rollback import OPTIONS as ROLLBACK_OPTIONS
from weightshift.cli.rollback import rollback
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import (
    Intervention,
    ReleaseRecord,
    ReleaseRequest,
    ReleaseStatus,
)
from weightshift.errors import Conflict, InvalidInput, ReleaseActive, TemporalUnreachable


def _ids(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (one.strip() for one in text.split(","))))


_START_OPTIONS = (
    Option(("--plan",), "WEIGHTSHIFT_PLAN", "YAML or JSON file; without one the default plan", parse=Path),
    Option(
        ("--wait",),
        "WEIGHTSHIFT_WAIT",
        "follow the release to its end, or until it is held (exit code 6)",
        default=False,
        switch=True,
    ),
    Option(("--request-key",), "WEIGHTSHIFT_REQUEST_KEY", "makes a repeated start attach to the first"),
    Option(
        ("--approval",),
        "WEIGHTSHIFT_APPROVAL",
        "ids of approvals given before the start, separated by commas",
        default=(),
        parse=_ids,
    ),
    Option(
        ("--allow-schema-change",),
        "WEIGHTSHIFT_ALLOW_SCHEMA_CHANGE",
        "callers are ready for another feature schema than the one that serves",
        default=False,
        switch=True,
    ),
    OPERATOR,
    REASON,
)


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
        options=(*_START_OPTIONS, *where, *REGISTRY),
    )
    for name, handler, summary in (
        ("status", status, "show the newest release"),
        ("watch", watch, "follow the active release to its end, on through a hold"),
    ):
        add_command(commands, name, handler, summary, positionals=["model"], options=where)
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


async def start(context: Context) -> int:
    """Start a release, and follow it with `--wait`."""
    arguments = context.arguments
    if arguments.request_key == "":
        raise InvalidInput("request_key: it is empty; leave --request-key out, or name the job.")
    plan = Plan() if arguments.plan is None else read_plan(arguments.plan)
    request = ReleaseRequest(
        release_id=await _release_id(context),
        service=context.service,
        artifact_id=arguments.artifact,
        plan=plan,
        operator=await _requester(context, plan),
        reason=arguments.reason,
        request_key=arguments.request_key,
        approvals=arguments.approval,
        allow_schema_change=arguments.allow_schema_change,
    )
    if (earlier := await _earlier(context, request)) is not None:
        return await _attach(context, earlier)
    client = await context.connections.releases(arguments)
    try:
        await client.start(request)
    except ReleaseActive:
        # A retry that overtook the first attempt's admission finds it now.
        if (earlier := await _earlier(context, request)) is None:
            raise
        return await _attach(context, earlier)
    return await _started(context, request.release_id, f"{context.service} {request.artifact_id} started")


async def _requester(context: Context, plan: Plan) -> str:
    """Return who asks for the release.

    Where people have to approve, that is the name on the token and no other: approvals carry such names,
    and whoever asked must not approve alone under a second one. Raises `InvalidInput`.
    """
    if not any(people for _, people in plan.required_approvals()):
        return operator_of(context)
    async with context.connections.registry(context.arguments) as registry:
        subject = (await registry.identity()).subject
    if context.arguments.operator not in (None, "", subject):
        raise InvalidInput(
            f"operator: the plan waits for approvals, so the registry's token says who asks, {subject}; "
            "leave --operator out."
        )
    return subject


async def _release_id(context: Context) -> str:
    """Return a new release id, or the one that the given approvals name."""
    if not context.arguments.approval:
        return str(ULID())
    async with context.connections.registry(context.arguments) as registry:
        found = [await registry.approval(context.service, one) for one in context.arguments.approval]
    release_ids = sorted({approval.release_id for approval in found})
    if len(release_ids) > 1:
        raise InvalidInput(f"approval: they are for different releases, {' and '.join(release_ids)}.")
    return release_ids[0]


async def _earlier(context: Context, request: ReleaseRequest) -> ReleaseRecord | None:
    """Return the release that already used the request key. Raises `Conflict` for another request."""
    if request.request_key is None:
        return None
    async with context.connections.registry(context.arguments) as registry:
        records = await registry.releases(request.service)
    found = next((record for record in records if record.request_key == request.request_key), None)
    if found is not None and found.request_digest != request.digest():
        raise Conflict(
            f"request key {request.request_key!r} was used for another request by release "
            f"{found.release_id}; use a new key"
        )
    return found


async def _attach(context: Context, record: ReleaseRecord) -> int:
    """Do as if this were the first attempt: follow the release, or give its recorded outcome."""
    if record.outcome is None:
        text = f"{record.service} {record.artifact_id} was started before with this request key"
        return await _started(context, record.release_id, text)
    text = f"release {record.release_id} of {record.service} {record.artifact_id} ended before"
    context.output.result(record, f"{text}: {record.outcome}: {record.reason}")
    return EXIT_CODES[record.outcome]


async def _started(context: Context, release_id: str, text: str) -> int:
    arguments = context.arguments
    if arguments.wait:
        return await follow(context, await context.connections.releases(arguments), ends_when_held=True)
    context.output.result(
        {"release_id": release_id},
        f"release {release_id} of {text}",
        f"next: weightshift release watch {arguments.model} -e {arguments.environment}",
    )
    return 0


async def status(context: Context) -> int:
    """Show the newest release."""
    client = await context.connections.releases(context.arguments)
    found = await newest_status(client, context.service)
    context.output.result(found, describe(found))
    return 0


async def watch(context: Context) -> int:
    """Follow the active release to its end, also while it is held: people may watch until it moves again."""
    return await follow(context, await context.connections.releases(context.arguments), ends_when_held=False)


async def pause(context: Context) -> int:
    """Stay at the current stage."""
    client = await context.connections.releases(context.arguments)
    return _acknowledge(context, await client.pause(context.service, _by(context)))


async def resume(context: Context) -> int:
    """Go on after a pause."""
    client = await context.connections.releases(context.arguments)
    return _acknowledge(context, await client.resume(context.service, _by(context)))


async def promote(context: Context) -> int:
    """Skip the rest of the current window."""
    client = await context.connections.releases(context.arguments)
    return _acknowledge(context, await client.promote(context.service, _by(context)))


def _by(context: Context) -> Intervention:
    return Intervention(operator=operator_of(context), reason=context.arguments.reason)


def _acknowledge(context: Context, found: ReleaseStatus) -> int:
    context.output.result(found, headline(found))
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
