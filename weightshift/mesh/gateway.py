"""The mesh adapter for the Gateway API: weights in an HTTPRoute, confirmed by the gateways' own status."""

from collections.abc import Sequence
from typing import Any

from weightshift.cluster.client import KubernetesClient
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.mesh.http_route import HttpRouteDialect
from weightshift.mesh.kubernetes_route import KubernetesRoute
from weightshift.settings import MeshSettings

_API = "/apis/gateway.networking.k8s.io/v1"
_CONDITIONS = ("Accepted", "ResolvedRefs")


def unready(stored: dict[str, Any]) -> str | None:
    """Return what a gateway still has to say of an HTTPRoute's newest version, or None. Pure."""
    generation = stored.get("metadata", {}).get("generation", 0)
    parents = stored.get("status", {}).get("parents") or []
    if not parents:
        return "no gateway has taken the HTTPRoute up"
    for parent in parents:
        name = parent.get("parentRef", {}).get("name", "gateway")
        conditions = {one["type"]: one for one in parent.get("conditions", [])}
        for kind in _CONDITIONS:
            condition = conditions.get(kind, {})
            if condition.get("observedGeneration", -1) < generation:
                return f"{name} has not seen generation {generation}"
            if condition.get("status") != "True":
                return f"{name}: not {kind}, {condition.get('reason', 'no reason given')}"
    return None


class GatewayMesh:
    """Writes to one HTTPRoute per service. Close it with `aclose`.

    A gateway says of each version of a route whether it has taken it up; how fast its proxies follow is
    for the measured split to show.
    """

    def __init__(self, *, client: KubernetesClient, settings: MeshSettings) -> None:
        self._routes = KubernetesRoute(
            client=client, settings=settings, dialect=HttpRouteDialect(), api=_API, plural="httproutes"
        )

    async def aclose(self) -> None:
        """Close the connections to the API."""
        await self._routes.aclose()

    async def read(self, service: Service) -> MeshState:
        """Return what the HTTPRoute says. Raises `RouteInvalid`, `Unauthorised`, `MeshUnreachable`."""
        return self._routes.route(service).state_of(await self._routes.fetch(service))

    async def check(self, service: Service, splits: Sequence[TrafficSplit]) -> None:
        """See that every split could be written. Raises what `read` raises."""
        await self._routes.check(service, splits)

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        """Set the weights. Raises `StaleFence`, `MeshDrift`, and what `read` raises."""
        stored = await self._routes.change(service, split, fence, expected=expected)
        return self._routes.route(service).state_of(stored)

    async def confirm(self, service: Service, state: MeshState) -> None:
        """Return when every gateway has accepted the version that holds the state.

        Raises `StaleFence`, `MeshConfirmationTimeout`, and what `read` raises.
        """
        await self._routes.confirm(service, state, _unready)

    async def finalise(self, service: Service, fence: Fence) -> None:
        """Take our rules and mirrors out, where one cohort carries everything."""
        await self._routes.finalise(service, fence)


async def _unready(stored: dict[str, Any]) -> str | None:
    return unready(stored)
