"""The mesh adapter for Istio: weights in a VirtualService, confirmed by istiod where it can be asked."""

from collections.abc import Sequence
from typing import Any

from weightshift.cluster.client import KubernetesClient
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable, RouteInvalid
from weightshift.mesh.istiod import Istiod
from weightshift.mesh.kubernetes_route import KubernetesRoute
from weightshift.mesh.virtual_service import VirtualServiceDialect
from weightshift.settings import MeshSettings

_API = "/apis/networking.istio.io/v1"
_NAMED_PROXIES = 3


class IstioMesh:
    """Writes to one VirtualService per service. Close it with `aclose`."""

    def __init__(self, *, client: KubernetesClient, settings: MeshSettings, istiod: Istiod | None) -> None:
        self._settings = settings
        self._istiod = istiod
        self._routes = KubernetesRoute(
            client=client,
            settings=settings,
            dialect=VirtualServiceDialect(),
            api=_API,
            plural="virtualservices",
        )

    async def aclose(self) -> None:
        """Close the connections to the API and to istiod."""
        await self._routes.aclose()
        if self._istiod is not None:
            await self._istiod.aclose()

    async def read(self, service: Service) -> MeshState:
        """Return what the VirtualService says. Raises `RouteInvalid`, `Unauthorised`, `MeshUnreachable`."""
        return self._routes.route(service).state_of(await self._routes.fetch(service))

    async def check(self, service: Service, splits: Sequence[TrafficSplit]) -> None:
        """See that every split could be written, and that the DestinationRule has both subsets.

        Raises what `read` raises.
        """
        await self._routes.check(service, splits)
        if self._settings.destination_rule:
            name = self._settings.destination_rule
            rule = await self._routes.fetch(service, plural="destinationrules", name=name)
            wanted = (self._settings.stable, self._settings.canary)
            _require_subsets(rule, [self._routes.named(one, service) for one in wanted])

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        """Set the weights. Raises `StaleFence`, `MeshDrift`, and what `read` raises."""
        stored = await self._routes.change(service, split, fence, expected=expected)
        return self._routes.route(service).state_of(stored)

    async def confirm(self, service: Service, state: MeshState) -> None:
        """Return when the VirtualService shows the state and, where istiod is asked, every proxy has it.

        Raises `StaleFence`, `MeshConfirmationTimeout`, and what `read` raises.
        """
        await self._routes.confirm(service, state, self._missing)

    async def finalise(self, service: Service, fence: Fence) -> None:
        """Take our rules and mirrors out, where one cohort carries everything."""
        await self._routes.finalise(service, fence)

    async def _missing(self, stored: dict[str, Any]) -> str | None:
        """Return which proxies do not have this version, or None."""
        if self._istiod is None:
            return None
        metadata = stored["metadata"]
        resource = f"VirtualService/{metadata['namespace']}/{metadata['name']}"
        try:
            behind = await self._istiod.behind(resource=resource, version=metadata["resourceVersion"])
        except MeshUnreachable as error:
            return str(error)
        if not behind:
            return None
        return f"{len(behind)} proxies are behind, {', '.join(behind[:_NAMED_PROXIES])} among them"


def _require_subsets(rule: dict[str, Any], wanted: Sequence[str]) -> None:
    """Raises `RouteInvalid` when a subset is missing: Istio would answer its requests with 503."""
    subsets = [subset.get("name") for subset in rule.get("spec", {}).get("subsets") or []]
    missing = [name for name in wanted if subsets.count(name) != 1]
    if missing:
        raise RouteInvalid(
            f"DestinationRule {rule['metadata']['name']} does not have subset {' and '.join(missing)} once; "
            "add it, or correct WEIGHTSHIFT_MESH_DESTINATION_RULE"
        )
