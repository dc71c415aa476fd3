"""`weightshift doctor`: whether everything that a release talks to answers, with the settings in force."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from weightshift.artifacts.base import manifest_key
from weightshift.cli.context import Context
from weightshift.cli.options import REGISTRY, STORE, TEMPORAL, Commands, Option, add_command
from weightshift.contracts.base import Message
from weightshift.contracts.identity import Service
from weightshift.errors import (
    InvalidInput,
    RouteInvalid,
    TemporalUnreachable,
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
    name: str
    address: str
    ask: Callable[[Context], Awaitable[str]]
    next_step: str


def add_commands(groups: Commands) -> None:
    """Declare the command."""
    add_command(
        groups, "doctor", doctor, "check that everything a release talks to answers", options=_OPTIONS
    )


async def doctor(context: Context) -> int:
    """Ask everything at once; 5 when something does not answer, 2 when all that is wrong is a setting."""
    context.output.line("asking everything that a release talks to")
    checked = await asyncio.gather(*(_run(check, context) for check in _checks(context)))
    findings = [finding for finding, _ in checked]
    code = max(code for _, code in checked)
    context.output.result({"ok": code == 0, "checks": findings}, *map(_line, findings))
    return code


def _line(finding: Finding) -> str:
    state = "ok" if finding.ok else "FAILED"
    return f"{state:6}  {finding.name:12}  {finding.address}  {finding.detail}"


def _checks(context: Context) -> tuple[_Check, ...]:
    arguments, mesh = context.arguments, MeshSettings()
    temporal = arguments.temporal_address or TemporalSettings().address
    is_envoy = mesh.adapter == "envoy"
    return (
        _Check(
            "temporal", temporal, _temporal, "start it, or set WEIGHTSHIFT_TEMPORAL_ADDRESS and _NAMESPACE"
        ),
        _Check("worker", temporal, _worker, "start one: python -m worker, with the same Temporal settings"),
        _Check(
            "registry",
            arguments.registry_url or RegistrySettings().url,
            _registry,
            "start it, or set WEIGHTSHIFT_REGISTRY_URL and WEIGHTSHIFT_REGISTRY_TOKEN",
        ),
        _Check(
            "prometheus",
            arguments.prometheus_url or MetricsSettings().prometheus_url,
            _prometheus,
            "start it, or set WEIGHTSHIFT_METRICS_PROMETHEUS_URL",
        ),
        _Check(
            "mesh agent" if is_envoy else mesh.adapter,
            mesh.agent_url if is_envoy else f"{mesh.namespace}/{mesh.route_object}",
            _mesh,
            "start it, or set WEIGHTSHIFT_MESH_AGENT_URL and WEIGHTSHIFT_MESH_AGENT_TOKEN"
            if is_envoy
            else "see docs/mesh.md for the settings and the rights it needs",
        ),
        _Check(
            "object store",
            arguments.store_url or StoreSettings().url,
            _store,
            "set WEIGHTSHIFT_STORE_URL, WEIGHTSHIFT_STORE_ENDPOINT and the AWS credentials",
        ),
    )


async def _run(check: _Check, context: Context) -> tuple[Finding, int]:
    """Return what a check found, and the exit code it asks for. No failure stops the other checks."""
    try:
        async with asyncio.timeout(_SECONDS):
            detail, code = await check.ask(context), 0
    except TimeoutError:
        detail, code = f"no answer within {_SECONDS:g} s", Unreachable.exit_code
    except Unreachable as error:
        detail, code = str(error), error.exit_code
    except WeightshiftError as error:
        detail, code = str(error), InvalidInput.exit_code
    except Exception as error:
        # Its words may repeat an address with a password in it.
        detail, code = f"it cannot be asked ({type(error).__name__})", InvalidInput.exit_code
    if code:
        detail = f"{detail.rstrip('.')}; next: {check.next_step}"
    address = _USER_AND_PASSWORD.sub("//", check.address)
    return Finding(name=check.name, ok=code == 0, address=address, detail=detail), code


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
    if bool(arguments.model) != bool(arguments.environment):
        raise InvalidInput("--model and --environment go together: give both, or neither")
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
