"""`weightshift local`: everything a release needs, on this machine."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from weightshift.cli.context import Context
from weightshift.cli.options import DIRECTORY, Commands, add_command, add_group
from weightshift.cli.output import table
from weightshift.cli.traffic import OPTIONS as TRAFFIC_OPTIONS
from weightshift.cli.traffic import traffic
from weightshift.errors import WeightshiftError

if TYPE_CHECKING:
    from weightshift.local.control import StackStatus


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "local", "everything a release needs, on this machine")
    add_command(commands, "up", up, "start the local stack, or what has ended of it")
    add_command(commands, "down", down, "end the local stack; its data stays")
    add_command(commands, "status", status, "show the local stack")
    add_command(commands, "traffic", traffic, "send checked requests to it", options=TRAFFIC_OPTIONS)


async def up(context: Context) -> int:
    """Start the local stack, or what has ended of the one that runs already."""
    from weightshift.local import control  # noqa: PLC0415 - heavy, and only this group needs it

    directory = context.arguments.dir
    before = control.status(directory)
    ended = _ended(before)
    if before.running and not ended:
        context.output.result(
            before, f"the local stack in {directory} runs already", overview(before), _next_step(directory)
        )
        return 0
    what = ", ".join(ended) or "databases, Envoy, Prometheus, registry, worker and four runtimes"
    context.output.line(
        f"starting {'again' if ended else 'the local stack'} in {directory}: {what}; half a minute or so, "
        f"logs in {directory}/logs"
    )
    state = await control.up(directory)
    context.output.result(state, "the local stack is up", overview(state), _next_step(directory))
    return 0


async def down(context: Context) -> int:
    """End the local stack."""
    from weightshift.local import control  # noqa: PLC0415

    directory = context.arguments.dir
    before = control.status(directory)
    active = await _active_release(before)
    state = await control.down(directory)
    context.output.result(
        state, f"the local stack in {directory} is down" if before.supervisor_pid else overview(state)
    )
    if active is not None:
        context.output.warning(f"{active} was in progress; it goes on when the stack is up again")
    return 0


async def _active_release(state: "StackStatus") -> str | None:
    """Name the release that runs on a stack; None when there is none, or Temporal cannot say."""
    if state.addresses is None or state.service is None or not state.processes.get("temporal"):
        return None
    from weightshift.client import ReleaseClient  # noqa: PLC0415 - takes longer than the rest of the command
    from weightshift.settings import TemporalSettings  # noqa: PLC0415

    settings = TemporalSettings(address=state.addresses.temporal, namespace="default", connect_timeout=2.0)
    with suppress(WeightshiftError):
        artifact = await (await ReleaseClient.connect(settings=settings)).active_artifact(state.service)
        return None if artifact is None else f"the release of {artifact} to {state.service}"
    return None


def _next_step(directory: Path) -> str:
    if directory != DIRECTORY.default:
        return f"give --dir {directory} to every command, or set {DIRECTORY.variable}"
    return "next: python -m weightshift.local.demo_models models, then push, approve and release one of them"


async def status(context: Context) -> int:
    """Show the local stack."""
    from weightshift.local import control  # noqa: PLC0415

    state = control.status(context.arguments.dir)
    ended = _ended(state)
    advice = [f"{', '.join(ended)} ended: `weightshift local up` starts it again; its log says why"]
    context.output.result(state, overview(state), *(advice if ended else []))
    return 0


def _ended(state: "StackStatus") -> list[str]:
    return [name for name, lives in state.processes.items() if not lives]


def overview(state: "StackStatus") -> RenderableType:
    """Return every process and address of a stack."""
    if state.addresses is None:
        return (
            f"no local stack runs in {state.directory}; `weightshift local up` starts one, and --dir names "
            "the directory of another"
        )
    addresses = state.addresses.model_dump()
    flat = {name: value for name, value in addresses.items() if isinstance(value, str)}
    for group in (value for value in addresses.values() if isinstance(value, dict)):
        flat |= group
    rows = [(name, address) for name, address in flat.items()]
    ended = [(name, "ended") for name in _ended(state)]
    return table(("NAME", "ADDRESS"), [*rows, *ended], empty="no address")
