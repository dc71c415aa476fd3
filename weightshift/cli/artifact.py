"""`weightshift artifact`: register weights and decide about them."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

from rich.console import RenderableType

from weightshift.cli.context import Context
from weightshift.cli.options import REASON, REGISTRY, STORE, Commands, Option, add_command, add_group
from weightshift.cli.output import table
from weightshift.cli.upload_progress import UploadProgress
from weightshift.contracts.approval import ArtifactUse
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState, Manifest, Precision, WeightFormat

ARCHITECTURES = "weightshift.architectures"
"""The entry points that runtimes find architectures by."""

_PUSH_OPTIONS = (
    Option(("--model",), "WEIGHTSHIFT_MODEL", "model the weights belong to", required=True),
    Option(("--id",), "WEIGHTSHIFT_ARTIFACT", "name of the artifact, used only once", required=True),
    Option(
        ("--runtime",),
        "WEIGHTSHIFT_FORMAT",
        "serialisation of the weights",
        default=WeightFormat.SAFETENSORS.value,
        choices=[item.value for item in WeightFormat],
    ),
    Option(("--feature-schema",), "WEIGHTSHIFT_FEATURE_SCHEMA", "input the model expects", required=True),
    Option(
        ("--precision",),
        "WEIGHTSHIFT_PRECISION",
        "floating-point type of the weights",
        default=Precision.FP32.value,
        choices=[item.value for item in Precision],
    ),
    Option(("--architecture",), "WEIGHTSHIFT_ARCHITECTURE", "architecture in the serving code"),
    Option(
        ("--signing-key-file",),
        "WEIGHTSHIFT_SIGNING_KEY_FILE",
        "private key to sign with; the key itself comes from WEIGHTSHIFT_SIGNING_KEY only",
        parse=Path,
    ),
    Option(
        ("--insecure-unsigned",),
        "WEIGHTSHIFT_INSECURE_UNSIGNED",
        "do not sign; for development, where runtimes check nothing",
        default=False,
        switch=True,
    ),
)


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "artifact", "register weights and decide about them")
    push_options = (*_PUSH_OPTIONS, *REGISTRY, *STORE)
    add_command(
        commands,
        "push",
        push,
        "store a directory of weights as an artifact",
        positionals=["directory"],
        options=push_options,
    )
    add_command(
        commands, "list", show_all, "list a model's artifacts", positionals=["model"], options=REGISTRY
    )
    one = ["model", "artifact"]
    add_command(commands, "show", show, "show one artifact", positionals=one, options=REGISTRY)
    add_command(
        commands, "approve", approve, "let an artifact be released", positionals=one, options=REGISTRY
    )
    add_command(
        commands,
        "reject",
        reject,
        "forbid an artifact for ever",
        positionals=one,
        options=(replace(REASON, required=True), *REGISTRY),
    )


async def push(context: Context) -> int:
    """Hash, sign, store and register a directory."""
    arguments = context.arguments
    record = await asyncio.to_thread(_store, context, Path(arguments.directory))
    async with context.connections.registry(arguments) as registry:
        record = await registry.register_artifact(record)
    signed = "signed" if record.signature_sha256 else "UNSIGNED"
    context.output.result(
        record,
        f"{record.model} {record.artifact_id} is stored, {signed} and {record.state}",
        _next_step(record),
    )
    return 0


def _store(context: Context, directory: Path) -> ArtifactRecord:
    from weightshift.artifacts.build import build_manifest  # noqa: PLC0415 - only this command needs it
    from weightshift.artifacts.push import push_artifact  # noqa: PLC0415

    arguments = context.arguments
    signing_key = None if arguments.insecure_unsigned else context.connections.signing_key(arguments)
    manifest = build_manifest(
        directory,
        model=arguments.model,
        artifact_id=arguments.id,
        runtime=WeightFormat(arguments.runtime),
        feature_schema=arguments.feature_schema,
        precision=Precision(arguments.precision),
        architecture=arguments.architecture,
    )
    context.output.line(f"storing {len(manifest.files)} files, {manifest.total_bytes:,} bytes")
    _warn(context, manifest)
    store = context.connections.store(arguments)
    with UploadProgress(context.output, total=manifest.total_bytes) as progress:
        return push_artifact(store, directory, manifest, progress.advance, signing_key=signing_key)


def _warn(context: Context, manifest: Manifest) -> None:
    """Say what a runtime may refuse later: weights it does not find, or an architecture it does not have."""
    if manifest.tensors is None:
        context.output.warning(f"no file is named as {manifest.runtime} weights are; no runtime will load it")
    name = manifest.architecture or manifest.model
    if not entry_points(group=ARCHITECTURES, name=name):
        context.output.warning(
            f"no architecture {name!r} is installed here; a runtime that has none refuses the artifact"
        )


def _next_step(record: ArtifactRecord) -> str:
    name = f"{record.model} {record.artifact_id}"
    match record.state:
        case ArtifactState.PENDING:
            return f"next: weightshift artifact approve {name}"
        case ArtifactState.READY:
            return f"next: weightshift release start {name} -e ENVIRONMENT"
        case ArtifactState.REJECTED:
            return "it is never released; push other weights under another id"


async def show_all(context: Context) -> int:
    """List a model's artifacts."""
    async with context.connections.registry(context.arguments) as registry:
        records = await registry.artifacts(context.arguments.model)
    context.output.result({"artifacts": records}, _as_table(records))
    return 0


async def show(context: Context) -> int:
    """Show one artifact."""
    async with context.connections.registry(context.arguments) as registry:
        record = await registry.artifact(context.arguments.model, context.arguments.artifact)
    context.output.result(record, _as_table([record]))
    return 0


async def approve(context: Context) -> int:
    """Let an artifact be released."""
    async with context.connections.registry(context.arguments) as registry:
        record = await registry.approve_artifact(context.arguments.model, context.arguments.artifact)
    text = f"{record.model} {record.artifact_id} is {record.state}"
    if record.state is ArtifactState.PENDING:
        text += f", approved by {', '.join(record.approvers)}; it needs somebody else's approval too"
    context.output.result(record, text, _next_step(record))
    return 0


async def reject(context: Context) -> int:
    """Forbid an artifact for ever."""
    arguments = context.arguments
    async with context.connections.registry(arguments) as registry:
        record = await registry.reject_artifact(arguments.model, arguments.artifact, arguments.reason)
    uses = [_use(use) for use in record.in_use]
    context.output.result(record, f"{record.model} {record.artifact_id} is {record.state}", *uses)
    return 0


def _use(use: ArtifactUse) -> str:
    desired = f"desired at revision {use.desired_revision}" if use.desired_revision else "no longer desired"
    instances = ", ".join(use.instance_ids) or "no instance"
    return f"STILL IN USE on {use.service} {use.cohort}: {desired}, served by {instances}; release another"


def _as_table(records: Iterable[ArtifactRecord]) -> RenderableType:
    columns = ("ARTIFACT", "STATE", "FEATURE SCHEMA", "SIGNED", "MANIFEST", "CREATED")
    rows = [
        (
            record.artifact_id,
            record.state,
            record.feature_schema,
            "yes" if record.signature_sha256 else "no",
            record.manifest_sha256,
            record.created_at and record.created_at.isoformat(timespec="seconds"),
        )
        for record in records
    ]
    return table(columns, rows, empty="no artifact is registered")
