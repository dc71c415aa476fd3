"""`weightshift doctor`: whether everything that a release talks to answers, with the settings in force."""

import asyncio
import re
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import ValidationError

from weightshift.artifacts.base import manifest_key
from weightshift.cli.context import Context
from weightshift.cli.local_hint import without_stack
from weightshift.cli.options import REGISTRY, STORE, TEMPORAL, Commands, Option, add_command
from weightshift.cli.problems import describe_problems
from weightshift.contracts.base import Message
from weightshift.contracts.identity import Service
from weightshift.errors import (
    InvalidInput,
    RouteInvalid,
    TemporalUnreachable,
    Unauthorised,
    UnknownArtifact,
    UnknownService,
    Unreachable,
    WeightshiftError,
)
from weightshift.settings import (
    MeshSettings,
    MetricsSettings,
    RegistrySettings,
    StoreSettings,
    TemporalSettings,
)

_SECONDS = 15.0
_USER_AND_PASSWORD = re.compile(r"//[^/@]*@")
_NOBODY = Service(model="doctor", environment="doctor")
_PROMETHEUS = Option(
    ("--prometheus-url",), "WEIGHTSHIFT_METRICS_PROMETHEUS_URL", "address of Prometheus, as the worker has it"
)
_OPTIONS = (
    Option(
        ("--model",), "WEIGHTSHIFT_MODEL", "with --environment: also read this model's split from the mesh"
    ),
    Option(("-e", "--environment"), "WEIGHTSHIFT_ENVIRONMENT", "the model's environment"),
    *TEMPORAL,
    *REGISTRY,
    *STORE,
    _PROMETHEUS,
)


class Finding(Message):
    """What one check found; `detail` ends with the next step where something is wrong."""

    name: str
    ok: bool
    address: str
    detail: str


@dataclass(frozen=True)
class _Check:
    """One question; `next_step` is for when nothing answers, `token` the variable of the token it sends."""

    name: str
    address: str
    ask: Callable[[Context], Awaitable[str]]
    next_step: str
    token: str = ""


def add_commands(groups: Commands) -> None:
    """Declare the command."""
    add_command(
        groups, "doctor", doctor, "check that everything a release talks to answers", options=_OPTIONS
    )


async def doctor(context: Context) -> int:
    """Ask everything at once; 5 when something does not answer, 2 when all that is wrong is a setting."""
    if bool(context.arguments.model) != bool(context.arguments.environment):
        raise InvalidInput("--model and --environment go together; give both, or neither.")
    context.output.line("asking everything that a release talks to")
    checked = await asyncio.gather(*(_run(name, context) for name in _CHECKS))
    findings = [finding for finding, _ in checked]
    code = max(code for _, code in checked)
    hint = without_stack(context.arguments.dir) if code else ""
    context.output.result({"ok": code == 0, "checks": findings}, *map(_line, findings), *filter(None, [hint]))
    return code


def _line(finding: Finding) -> str:
    state = "ok" if finding.ok else "FAILED"
    return f"{state:6}  {finding.name:12}  {finding.address}  {finding.detail}"


def _temporal_check(arguments: Namespace) -> _Check:
    address = arguments.temporal_address or TemporalSettings().address
    next_step = "start it, or set WEIGHTSHIFT_TEMPORAL_ADDRESS and _NAMESPACE"
    return _Check("temporal", address, _temporal, next_step)


def _worker_check(arguments: Namespace) -> _Check:
    address = arguments.temporal_address or TemporalSettings().address
    next_step = "start one: python -m worker, with the same Temporal settings"
    return _Check("worker", address, _worker, next_step)


def _registry_check(arguments: Namespace) -> _Check:
    address = arguments.registry_url or RegistrySettings().url
    next_step = "start it, or set WEIGHTSHIFT_REGISTRY_URL"
    return _Check("registry", address, _registry, next_step, token="WEIGHTSHIFT_REGISTRY_TOKEN")  # noqa: S106


def _prometheus_check(arguments: Namespace) -> _Check:
    address = arguments.prometheus_url or MetricsSettings().prometheus_url
    return _Check("prometheus", address, _prometheus, "start it, or set WEIGHTSHIFT_METRICS_PROMETHEUS_URL")


def _mesh_check(arguments: Namespace) -> _Check:
    mesh = MeshSettings()
    if mesh.adapter == "envoy":
        next_step = "start it, or set WEIGHTSHIFT_MESH_AGENT_URL"
        token = "WEIGHTSHIFT_MESH_AGENT_TOKEN"  # noqa: S105  (a variable's name)
        return _Check("mesh agent", mesh.agent_url, _mesh, next_step, token=token)
    address = f"{mesh.namespace}/{mesh.route_object}"
    return _Check(mesh.adapter, address, _mesh, "see docs/mesh.md for the settings and the rights it needs")


def _store_check(arguments: Namespace) -> _Check:
    address = arguments.store_url or StoreSettings().url
    next_step = "set WEIGHTSHIFT_STORE_URL, WEIGHTSHIFT_STORE_ENDPOINT and the AWS credentials"
    return _Check("object store", address, _store, next_step)


_CHECKS: dict[str, Callable[[Namespace], _Check]] = {
    "temporal": _temporal_check,
    "worker": _worker_check,
    "registry": _registry_check,
    "prometheus": _prometheus_check,
    "mesh": _mesh_check,
    "object store": _store_check,
}


async def _run(name: str, context: Context) -> tuple[Finding, int]:
    """Return what a check found, and the exit code it asks for. No failure stops the other checks."""
    try:
        check = _CHECKS[name](context.arguments)
    except ValidationError as error:
        detail = "; ".join(describe_problems(error))
        return Finding(name=name, ok=False, address="", detail=detail), InvalidInput.exit_code
    detail, code = await _ask(check, context)
    address = _USER_AND_PASSWORD.sub("//", check.address)
    return Finding(name=check.name, ok=code == 0, address=address, detail=detail), code


async def _ask(check: _Check, context: Context) -> tuple[str, int]:
    """Return what a check was answered, with the next step where something is wrong, and the exit code."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await check.ask(context), 0
    except (Unreachable, TimeoutError) as error:
        problem = str(error).rstrip(".") or f"no answer within {_SECONDS:g} s"
        return f"{problem}; next: {check.next_step}", Unreachable.exit_code
    except Unauthorised as error:
        next_step = "" if check.token in str(error) else f"; next: set {check.token} to a valid token"
        return f"{str(error).rstrip('.')}{next_step}", InvalidInput.exit_code
    except WeightshiftError as error:
        return str(error), InvalidInput.exit_code
    except ValidationError as error:
        return "; ".join(describe_problems(error)), InvalidInput.exit_code
    except Exception as error:
        # Its words may repeat an address with a password in it.
        problem = f"it cannot be asked ({type(error).__name__})"
        return f"{problem}; next: {check.next_step}", InvalidInput.exit_code


async def _temporal(context: Context) -> str:
    await (await context.connections.releases(context.arguments)).workers()
    return f"namespace {context.arguments.temporal_namespace or TemporalSettings().namespace}"


async def _worker(context: Context) -> str:
    workers = await (await context.connections.releases(context.arguments)).workers()
    if not workers:
        raise TemporalUnreachable("no worker polls Temporal, so a release would start and stand still")
    return f"{workers} polling"


async def _registry(context: Context) -> str:
    async with context.connections.registry(context.arguments) as registry:
        identity = await registry.identity()
    return (
        f"the token is {identity.role} {identity.subject}'s, for {identity.model} in {identity.environment}"
    )


async def _prometheus(context: Context) -> str:
    instances = await context.connections.prometheus(context.arguments).scraped_instances()
    return f"has requests of {instances} runtimes; those that never served have none"


async def _mesh(context: Context) -> str:
    """Read a split; without a model that of one nobody has, which tells that the mesh answers."""
    arguments = context.arguments
    mesh = context.connections.mesh()
    try:
        if arguments.model:
            return f"traffic stable/canary {(await mesh.read(context.service)).split}"
        await mesh.read(_NOBODY)
    except (UnknownService, RouteInvalid):
        if arguments.model:
            raise
    finally:
        await mesh.aclose()
    return "answers; --model and -e read a split too"


async def _store(context: Context) -> str:
    """Read an object that is not there: unlike the question whether it is, that notices a missing bucket."""
    await asyncio.to_thread(_read_nothing, context)
    return "readable"


def _read_nothing(context: Context) -> None:
    store = context.connections.store(context.arguments)
    try:
        next(iter(store.stream(manifest_key("doctor", "0" * 64))), None)
    except UnknownArtifact:
        return
