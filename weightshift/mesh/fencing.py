"""Which commands a mesh accepts. Pure."""

from weightshift.contracts.traffic import MeshState
from weightshift.errors import MeshDrift, StaleFence


def require_current(accepted: MeshState, command: MeshState) -> None:
    """Refuse a command that is older than the accepted one, or that contradicts it.

    Raises `StaleFence`.
    """
    newest, fence = accepted.fence, command.fence
    if newest is None or fence is None:
        return
    if fence < newest:
        raise StaleFence(f"fence {fence} is older than the accepted {newest}; read the mesh and decide again")
    if fence == newest and command.split != accepted.split and accepted.drift is None:
        raise StaleFence(f"fence {fence} already set {accepted.split}; use a newer one for {command.split}")


def require_expected(found: MeshState, command: MeshState, expected: MeshState | None) -> None:
    """Refuse to build on a split that somebody else changed. Raises `MeshDrift`.

    Without an expectation everything is overridden, as a rollback must. A repeat of the command passes.
    """
    if expected is None or (found.obeys(command) and found.drift is None):
        return
    change = foreign_change(found, expected)
    if change is not None:
        raise MeshDrift(change)


def foreign_change(found: MeshState, expected: MeshState) -> str | None:
    """Return how the mesh differs from what it was last read back to do, or None."""
    if found.drift is not None:
        return f"{found.drift}; find out who edits the route, and release again"
    if found.obeys(expected):
        return None
    return (
        f"the mesh does {found}, and the last command was {expected}; find out who edits the route, "
        "and release again"
    )


def require_confirmed(shown: MeshState, state: MeshState) -> bool:
    """Return whether the data plane shows a command. Raises `StaleFence` when it shows a newer one."""
    if shown.fence is not None and state.fence is not None and state.fence < shown.fence:
        raise StaleFence(
            f"fence {state.fence} was overtaken by {shown.fence}; read the mesh and decide again"
        )
    return shown.drift is None and shown.obeys(state)
