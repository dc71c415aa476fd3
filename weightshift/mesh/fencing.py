"""Which commands a mesh accepts. Pure."""

from weightshift.contracts.traffic import MeshState
from weightshift.errors import StaleFence


def require_current(accepted: MeshState, command: MeshState) -> None:
    """Refuse a command that is older than the accepted one, or that contradicts it.

    Raises `StaleFence`.
    """
    newest, fence = accepted.fence, command.fence
    if newest is None or fence is None:
        return
    if fence < newest:
        raise StaleFence(f"fence {fence} is older than the accepted {newest}; read the mesh and decide again")
    if fence == newest and command.split != accepted.split:
        raise StaleFence(f"fence {fence} already set {accepted.split}; use a newer one for {command.split}")
