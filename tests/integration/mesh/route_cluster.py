"""One API server with one route: what tests of the Kubernetes adapters share."""

from dataclasses import dataclass
from typing import Any

from tests.kubernetes_api.server import KubernetesApi
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.mesh.gateway import GatewayMesh
from weightshift.mesh.istio import IstioMesh

SERVICE = Service(model="ranker", environment="test")
QUARTER = TrafficSplit.with_canary(25)
NOTHING = TrafficSplit.with_canary(0)


@dataclass
class Cluster:
    """One API server with one route, and the adapter that writes to it."""

    api: KubernetesApi
    mesh: IstioMesh | GatewayMesh
    impatient: IstioMesh | GatewayMesh
    plural: str

    def edit(self, change: Any) -> None:
        self.api.edit(self.plural, "ranker", change)

    def stored(self) -> dict[str, Any]:
        return self.api.get(self.plural, "ranker")

    def owned(self, stored: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the two weighted backends of the owned rule."""
        rules = stored["spec"]["http" if self.plural == "virtualservices" else "rules"]
        backends: list[dict[str, Any]] = rules[1]["route" if "route" in rules[1] else "backendRefs"]
        return backends

    def shift_by_hand(self, *weights: int) -> None:
        def change(stored: dict[str, Any]) -> None:
            for backend, weight in zip(self.owned(stored), weights, strict=True):
                backend["weight"] = weight

        self.edit(change)


def fence(sequence: int, *, epoch: int = 1) -> Fence:
    return Fence(epoch=epoch, sequence=sequence)
