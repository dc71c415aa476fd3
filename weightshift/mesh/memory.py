"""A mesh in memory: the twin that tests and demonstrations use in place of a real one."""

from collections.abc import Sequence

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshConfirmationTimeout, WeightshiftError
from weightshift.mesh.fencing import require_confirmed, require_current, require_expected

_INITIAL = MeshState(split=TrafficSplit.all_to(Cohort.STABLE))


class MemoryMesh:
    """Fenced like a real mesh. A service never written to has everything on stable.

    `writes` holds every accepted write, oldest first. `failure` is raised by every call while set,
    before anything changes. While `follows` is false, writes are accepted but never shown.
    """

    def __init__(self) -> None:
        self.writes: list[tuple[Service, TrafficSplit, Fence]] = []
        self.failure: WeightshiftError | None = None
        self.follows = True
        self._accepted: dict[Service, MeshState] = {}
        self._shown: dict[Service, MeshState] = {}

    async def read(self, service: Service) -> MeshState:
        """Return what the data plane does now. Raises `failure`."""
        self._fail_if_told()
        return self._shown.get(service, _INITIAL)

    async def check(self, service: Service, splits: Sequence[TrafficSplit]) -> None:
        """Accept every split. Raises `failure`."""
        self._fail_if_told()

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        """Accept a split. Raises `StaleFence`, `MeshDrift`, and `failure`."""
        self._fail_if_told()
        command = MeshState(split=split, fence=fence)
        accepted = self._accepted.get(service, _INITIAL)
        require_current(accepted, command)
        require_expected(accepted, command, expected)
        if accepted != command:
            self._accepted[service] = command
            self.writes.append((service, split, fence))
        if self.follows:
            self._shown[service] = command
        return command

    async def confirm(self, service: Service, state: MeshState) -> None:
        """Raises `MeshConfirmationTimeout` while `follows` is false, `StaleFence`, and `failure`."""
        self._fail_if_told()
        if self.follows:
            self._shown[service] = self._accepted.get(service, _INITIAL)
        if not require_confirmed(self._shown.get(service, _INITIAL), state):
            raise MeshConfirmationTimeout(f"the mesh does not show {state}; write it again")

    async def finalise(self, service: Service, fence: Fence) -> None:
        """Nothing but the split is ever kept. Raises `failure`."""
        self._fail_if_told()

    def edit(self, service: Service, split: TrafficSplit) -> None:
        """Change the split the way somebody would who knows nothing of fences."""
        fence = self._accepted.get(service, _INITIAL).fence
        drift = f"the weights are {split}, which no command of ours has set"
        self._accepted[service] = MeshState(split=split, fence=fence, drift=drift)
        self._shown[service] = self._accepted[service]

    def _fail_if_told(self) -> None:
        if self.failure is not None:
            raise self.failure
