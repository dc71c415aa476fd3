"""The seam between releases and a service mesh."""

from typing import Protocol

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit


class Mesh(Protocol):
    """Reads and writes one service's split. Adapters judge nothing and remember nothing."""

    async def read(self, service: Service) -> MeshState:
        """Return what the data plane does now. Raises `MeshUnreachable`."""

    async def write(self, service: Service, split: TrafficSplit, fence: Fence) -> MeshState:
        """Set the split and return the read-back that shows it.

        A repeat with the same fence and split is a no-op. Raises `StaleFence` when a newer fence was
        seen, `MeshConfirmationTimeout` when the data plane does not follow, `MeshUnreachable`.
        """
