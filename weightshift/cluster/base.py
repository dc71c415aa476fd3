"""The seam between releases and the cluster that their pods run in."""

from collections.abc import Collection
from typing import Protocol

from weightshift.contracts.cluster import Pool
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.errors import ScaleRefused


class Cluster(Protocol):
    """Reads a cohort's pods, and keeps enough of them for as long as a release needs them."""

    async def pool(self, service: Service, cohort: Cohort) -> Pool | None:
        """Return what the cluster knows of a cohort's pods; None where there is no cluster.

        Raises `KubernetesUnreachable`, `ScaleRefused` when something named in the settings is missing.
        """

    async def hold(self, service: Service, cohort: Cohort, replicas: int | None, fence: Fence) -> None:
        """Keep at least `replicas` pods, against autoscalers too, until `let_go`; None is as many as now.

        What was set before is kept with the fence, by the first of several holds. Raises `StaleFence`, and
        what `pool` raises.
        """

    async def let_go(
        self, service: Service, cohort: Cohort, fence: Fence, *, keep: Collection[str] = ()
    ) -> None:
        """Put back what was set before `hold`, unless somebody else has changed it since.

        The pods in `keep` are the last to go, where the cluster can be told. Raises what `hold` raises.
        """


class NoCluster:
    """Nothing is known of the pods, and none are asked for."""

    async def pool(self, service: Service, cohort: Cohort) -> Pool | None:
        """Return nothing."""
        return None

    async def hold(self, service: Service, cohort: Cohort, replicas: int | None, fence: Fence) -> None:
        """Raises `ScaleRefused` when a number of pods is asked for."""
        if replicas is not None:
            raise ScaleRefused(
                f"{replicas} pods of {cohort} are asked for and no cluster is named; set "
                f"WEIGHTSHIFT_CLUSTER_ADAPTER, or start {cohort} instances and leave `canary_replicas` out"
            )

    async def let_go(
        self, service: Service, cohort: Cohort, fence: Fence, *, keep: Collection[str] = ()
    ) -> None:
        """Nothing was held."""

    async def aclose(self) -> None:
        """Nothing is open."""


NO_CLUSTER = NoCluster()
