"""A mesh in memory: the twin that tests and demonstrations use in place of a real one."""

import asyncio
from datetime import timedelta

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshConfirmationTimeout, WeightshiftError
from weightshift.mesh.fencing import require_current

_INITIAL = MeshState(split=TrafficSplit.all_to(Cohort.STABLE))


class MemoryMesh:
    """Fenced like a real mesh. A service never written to has everything on stable.

    `writes` holds every accepted write, oldest first. `failure` is raised by every call while set,
    before anything changes. While `follows` is false, writes are accepted but never shown. `lag`
    passes before a write shows.
    """

    def __init__(self, *, lag: timedelta = timedelta(0)) -> None:
        self.writes: list[tuple[Service, TrafficSplit, Fence]] = []
        self.failure: WeightshiftError | None = None
        self.follows = True
        self.lag = lag
        self._accepted: dict[Service, MeshState] = {}
        self._shown: dict[Service, MeshState] = {}

    async def read(self, service: Service) -> MeshState:
        """Return what the data plane does now. Raises `failure`."""
        self._fail_if_told()
        return self._shown.get(service, _INITIAL)

    async def write(self, service: Service, split: TrafficSplit, fence: Fence) -> MeshState:
        """Set the split and return the read-back.

        Raises `StaleFence`, `MeshConfirmationTimeout` while `follows` is false, and `failure`.
        """
        self._fail_if_told()
        command = MeshState(split=split, fence=fence)
        require_current(self._accepted.get(service, _INITIAL), command)
        if self._accepted.get(service) != command:
            self._accepted[service] = command
            self.writes.append((service, split, fence))
        await asyncio.sleep(self.lag.total_seconds())
        if not self.follows:
            raise MeshConfirmationTimeout(f"the mesh does not show {split} at fence {fence}; write it again")
        # A newer command may have been accepted during the lag; an older one never shows after it.
        self._shown[service] = self._accepted[service]
        require_current(self._shown[service], command)
        return self._shown[service]

    def _fail_if_told(self) -> None:
        if self.failure is not None:
            raise self.failure
