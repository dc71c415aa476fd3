"""`weightshift local`: everything a release needs, on this machine."""

from typing import TYPE_CHECKING

from rich.console import RenderableType

from weightshift.cli.context import Context
from weightshift.cli.options import Commands, add_command, add_group
from weightshift.cli.output import table

if TYPE_CHECKING:
    from weightshift.local.control import StackStatus


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "local", "everything a release needs, on this machine")
    add_command(commands, "up", up, "start the local stack")
    add_command(commands, "down", down, "end the local stack; its data stays")
    add_command(commands, "status", status, "show the local stack")


async def up(context: Context) -> int:
    """Start the local stack, or show the one that runs already."""
    from weightshift.local import control  # noqa: PLC0415 - heavy, and only this group needs it

    context.output.line("starting the local stack")
    state = await control.up(context.arguments.dir)
    context.output.result(state, "the local stack is up", overview(state))
    return 0


async def down(context: Context) -> int:
    """End the local stack."""
    from weightshift.local import control  # noqa: PLC0415

    state = await control.down(context.arguments.dir)
    context.output.result(state, "the local stack is down")
    return 0


async def status(context: Context) -> int:
    """Show the local stack."""
    from weightshift.local import control  # noqa: PLC0415

    state = control.status(context.arguments.dir)
    context.output.result(state, overview(state))
    return 0


def overview(state: "StackStatus") -> RenderableType:
    """Return every process and address of a stack."""
    if state.addresses is None:
        return f"no local stack runs in {state.directory}"
    addresses = state.addresses.model_dump()
    flat = {name: value for name, value in addresses.items() if isinstance(value, str)}
    for group in (value for value in addresses.values() if isinstance(value, dict)):
        flat |= group
    rows = [(name, address) for name, address in flat.items()]
    ended = [(name, "ended") for name, lives in state.processes.items() if not lives]
    return table(("NAME", "ADDRESS"), [*rows, *ended], empty="no address")
