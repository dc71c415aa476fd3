"""`weightshift release start`: ask for a release, once however often it is asked, and follow it."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ulid import ULID

from weightshift.cli.context import Context
from weightshift.cli.follow import follow
from weightshift.cli.options import ENVIRONMENT, OPERATOR, REASON, REGISTRY, TEMPORAL, Option, operator_of
from weightshift.cli.plan_file import read_plan
from weightshift.cli.release_view import EXIT_CODES
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import ReleasePhase, ReleaseRecord, ReleaseRequest
from weightshift.errors import (
    Conflict,
    InvalidInput,
    ReleaseActive,
    TemporalUnreachable,
    Unauthorised,
    UnknownService,
    Unreachable,
)
from weightshift.way_back import serving_release

if TYPE_CHECKING:
    from weightshift.client import ReleaseClient

_LONGEST_ADMISSION_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 0.5
_ADMISSION_ANSWERS_SECONDS = 10.0


def _ids(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (one.strip() for one in text.split(","))))


OPTIONS = (
    Option(("--plan",), "WEIGHTSHIFT_PLAN", "YAML or JSON file; without one the default plan", parse=Path),
    Option(
        ("--wait",),
        "WEIGHTSHIFT_WAIT",
        "follow the release to its end, or until it is held (exit code 6)",
        default=False,
        switch=True,
    ),
    Option(
        ("--again",),
        "WEIGHTSHIFT_AGAIN",
        "release it though it serves already",
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
    ENVIRONMENT,
    *TEMPORAL,
    *REGISTRY,
)


async def start(context: Context) -> int:
    """Start a release, and follow it to its end with `--wait`, else until it is admitted.

    Raises what it is refused with.
    """
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
    if not arguments.again and (serving := await _serving(context)) is not None:
        text = f"{serving.artifact_id} serves {context.service} already, by release {serving.release_id}"
        context.output.result(serving, f"{text}; nothing was changed, --again releases it once more")
        return 0
    client = await context.connections.releases(arguments)
    return await _start_or_attach(context, client, request)


async def _start_or_attach(context: Context, client: "ReleaseClient", request: ReleaseRequest) -> int:
    """Start the release, or attach to the one that the first attempt with its request key has started.

    The registry knows that key once the running release is admitted, which is waited for, a minute at most.
    Raises `ReleaseActive` for another release.
    """
    deadline = time.monotonic() + _LONGEST_ADMISSION_SECONDS
    while True:
        try:
            run_id = await client.start(request)
        except ReleaseActive:
            # Asked before the registry, so that an admission that ends in between is not missed.
            may_be_first = request.request_key is not None and await _is_being_admitted(client, request)
            if (earlier := await _earlier(context, request)) is not None:
                return await _attach(context, earlier)
            if not may_be_first or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        else:
            if not context.arguments.wait:
                await _see_admitted(context, client, run_id)
            text = f"{context.service} {request.artifact_id} started"
            return await _started(context, request.release_id, run_id, text)


async def _see_admitted(context: Context, client: "ReleaseClient", run_id: str) -> None:
    """Wait for a moment until the release is admitted; one that nobody has taken yet is kept, and told of."""
    try:
        async with asyncio.timeout(_ADMISSION_ANSWERS_SECONDS):
            await client.admitted(context.service, run_id)
    except TimeoutError:
        because = f"nobody has answered for {_ADMISSION_ANSWERS_SECONDS:g} s"
    except TemporalUnreachable as error:
        because = str(error)
    else:
        return
    context.output.warning(
        f"whether the release is admitted is not known: {because}; it is kept, `weightshift doctor` says "
        "what is away, and `weightshift release status` later what became of it"
    )


async def _is_being_admitted(client: "ReleaseClient", request: ReleaseRequest) -> bool:
    """Whether the running release is not past its admission; also where nobody can say, or it just ended."""
    try:
        return (await client.status(request.service)).phase is ReleasePhase.ADMITTING
    except (TemporalUnreachable, UnknownService):
        return True


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


async def _serving(context: Context) -> ReleaseRecord | None:
    """Return the release by which the artifact serves already; a registry that is away is no obstacle."""
    try:
        async with context.connections.registry(context.arguments) as registry:
            stable = (await registry.targets(context.service)).stable
            records = await registry.releases(context.service)
    except (Unreachable, Unauthorised) as error:
        context.output.warning(f"whether it serves already is not known: {error}")
        return None
    return serving_release(records, stable.artifact_id if stable else None, context.arguments.artifact)


async def _attach(context: Context, record: ReleaseRecord) -> int:
    """Do as if this were the first attempt: follow the release, or give its recorded outcome."""
    if record.outcome is None:
        text = f"{record.service} {record.artifact_id} was started before with this request key"
        return await _started(context, record.release_id, record.run_id, text)
    text = f"release {record.release_id} of {record.service} {record.artifact_id} ended before"
    context.output.result(record, f"{text}: {record.outcome}: {record.reason}")
    return EXIT_CODES[record.outcome]


async def _started(context: Context, release_id: str, run_id: str, text: str) -> int:
    arguments = context.arguments
    if arguments.wait:
        client = await context.connections.releases(arguments)
        return await follow(context, client, ends_when_held=True, run_id=run_id)
    context.output.result(
        {"release_id": release_id},
        f"release {release_id} of {text}",
        f"next: weightshift release watch {arguments.model} -e {arguments.environment}",
    )
    return 0
