"""The seam between releases and a service mesh."""

from collections.abc import Sequence
from typing import Protocol

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit


class Mesh(Protocol):
    """Reads and writes one service's split. Adapters judge nothing and remember nothing."""

    async def read(self, service: Service) -> MeshState:
        """Return what the mesh does now, with its `drift` where somebody else changed it.

        Raises `MeshUnreachable`, and `RouteInvalid` when the route is missing or ambiguous.
        """

    async def check(self, service: Service, splits: Sequence[TrafficSplit]) -> None:
        """See that every one of these splits could be written; writes nothing.

        Raises `RouteInvalid` naming what is in the way, `MeshUnreachable`, and `Unauthorised`.
        """

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        """Have the split accepted, durably, and return what was accepted; `confirm` waits until it shows.

        A repeat with the same fence and split is a no-op. Raises `StaleFence` when a newer fence was
        seen, `MeshDrift` when `expected` is given and the mesh no longer does that (a write without it
        overrides what somebody else changed), `RouteInvalid`, `Unauthorised`, `MeshUnreachable`.
        """

    async def confirm(self, service: Service, state: MeshState) -> None:
        """Return when the data plane shows what was written.

        Raises `StaleFence` when a newer command has taken its place, and `MeshConfirmationTimeout`.
        """

    async def finalise(self, service: Service, fence: Fence) -> None:
        """Take everything out of the route that only a release in progress needs; the split stays.

        Nothing changes while the split is not terminal. Raises what `write` raises.
        """
