"""A cluster in memory: the twin that tests use in place of a real one."""

from collections.abc import Collection

from weightshift.contracts.cluster import Pool
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.errors import StaleFence, WeightshiftError


class MemoryCluster:
    """Pods that are ready as soon as they are wanted.

    `pods` are those per cohort; `unready` of them are not ready. `held` is what was set before, while it is
    held; `kept` are the pods that were to be the last to go. `failure` is raised by every call while set.
    """

    def __init__(self, *, stable: int = 2, canary: int = 2) -> None:
        self.pods = {Cohort.STABLE: stable, Cohort.CANARY: canary}
        self.unready = {Cohort.STABLE: 0, Cohort.CANARY: 0}
        self.held: dict[Cohort, int] = {}
        self.kept: set[str] = set()
        self.failure: WeightshiftError | None = None
        self._newest: dict[Cohort, Fence] = {}

    async def pool(self, service: Service, cohort: Cohort) -> Pool | None:
        """Return how many there are, and how many of them are ready."""
        self._fail_if_told()
        wanted, unready = self.pods[cohort], self.unready[cohort]
        return Pool(wanted=wanted, ready=wanted - unready, routed=wanted - unready, unrouted=unready)

    async def hold(self, service: Service, cohort: Cohort, replicas: int | None, fence: Fence) -> None:
        """Raise the number of pods. Raises `StaleFence`."""
        self._accept(cohort, fence)
        self.held.setdefault(cohort, self.pods[cohort])
        self.pods[cohort] = max(self.pods[cohort], replicas or 0)

    async def let_go(
        self, service: Service, cohort: Cohort, fence: Fence, *, keep: Collection[str] = ()
    ) -> None:
        """Put the number of pods back. Raises `StaleFence`."""
        self._accept(cohort, fence)
        self.kept |= set(keep)
        self.pods[cohort] = self.held.pop(cohort, self.pods[cohort])

    async def aclose(self) -> None:
        """Nothing is open."""

    def _accept(self, cohort: Cohort, fence: Fence) -> None:
        self._fail_if_told()
        newest = self._newest.get(cohort, fence)
        if fence < newest:
            raise StaleFence(f"fence {fence} is older than the accepted {newest}; it changes nothing")
        self._newest[cohort] = fence

    def _fail_if_told(self) -> None:
        if self.failure is not None:
            raise self.failure
