"""What the adapters of Kubernetes share: reading and changing one object per service."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from string import Template
from typing import Any

from weightshift.cluster.client import KubernetesClient
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    KubernetesRefused,
    KubernetesUnreachable,
    MeshConfirmationTimeout,
    MeshUnreachable,
    RouteInvalid,
    Unauthorised,
    WeightshiftError,
)
from weightshift.mesh.fencing import require_confirmed, require_current, require_expected
from weightshift.mesh.route_dialect import Dialect
from weightshift.mesh.weighted_route import WeightedRoute
from weightshift.settings import MeshSettings

Object = dict[str, Any]
_CHECKING = Fence(epoch=0, sequence=0)
_FORBIDDEN = (401, 403)
_POLL_INTERVAL = 0.05


class KubernetesRoute:
    """The objects of one kind that hold routes; `api` is the path of the kind's group and version.

    Needs `get` and `patch` on the named object, and nothing else.
    """

    def __init__(
        self, *, client: KubernetesClient, settings: MeshSettings, dialect: Dialect, api: str, plural: str
    ) -> None:
        self._client = client
        self._settings = settings
        self._dialect = dialect
        self._api = api
        self._plural = plural

    async def aclose(self) -> None:
        """Close the connections to the API."""
        await self._client.aclose()

    def named(self, template: str, service: Service) -> str:
        """Fill `$model` and `$environment` into one of the settings' names."""
        return Template(template).safe_substitute(model=service.model, environment=service.environment)

    def path(self, service: Service, *, plural: str = "", name: str = "") -> str:
        """Return where the service's object is, or another one of the same group beside it."""
        namespace = self.named(self._settings.namespace, service)
        name = self.named(name or self._settings.route_object, service)
        return f"{self._api}/namespaces/{namespace}/{plural or self._plural}/{name}"

    def route(self, service: Service) -> WeightedRoute:
        """Return the service's rule in its object."""
        rule, stable, canary = (
            self.named(template, service)
            for template in (self._settings.route, self._settings.stable, self._settings.canary)
        )
        return WeightedRoute(service=service, dialect=self._dialect, rule=rule, stable=stable, canary=canary)

    async def fetch(self, service: Service, *, plural: str = "", name: str = "") -> Object:
        """Return the service's object. Raises `RouteInvalid`, `Unauthorised`, `MeshUnreachable`."""
        path = self.path(service, plural=plural, name=name)
        try:
            return await self._client.get(path)
        except (KubernetesRefused, KubernetesUnreachable) as error:
            raise _mesh_error(error, path) from error

    async def check(self, service: Service, splits: Sequence[TrafficSplit]) -> None:
        """See that every split could be written. Raises what `fetch` raises."""
        stored, route = await self.fetch(service), self.route(service)
        route.state_of(stored)
        for split in splits:
            route.operations(stored, split, _CHECKING)

    async def change(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None
    ) -> Object:
        """Have the object do a split, if its fence and its owner allow; returns the object as it is then.

        Fence, expectation and weights are compared and written against one version of the object. Raises
        `StaleFence`, `MeshDrift`, and what `fetch` raises.
        """
        route, command = self.route(service), MeshState(split=split, fence=fence)
        path = self.path(service)

        def operations(stored: Object) -> list[Object]:
            found = route.state_of(stored)
            require_current(found, command)
            require_expected(found, command, expected)
            if found == command:
                return []
            return route.operations(stored, split, fence)

        try:
            return await self._client.compare_and_set(path, operations)
        except (KubernetesRefused, KubernetesUnreachable) as error:
            raise _mesh_error(error, path) from error

    async def confirm(
        self, service: Service, state: MeshState, missing: Callable[[Object], Awaitable[str | None]]
    ) -> None:
        """Return when the object shows a state and nothing of it is `missing` in the data plane.

        Raises `StaleFence`, `MeshConfirmationTimeout`, and what `fetch` raises.
        """
        timeout, reason = self._settings.confirm_timeout, "it does not answer"
        try:
            async with asyncio.timeout(timeout):
                while True:
                    stored = await self.fetch(service)
                    shown = self.route(service).state_of(stored)
                    if require_confirmed(shown, state):
                        behind = await missing(stored)
                        if behind is None:
                            return
                        reason = behind
                    else:
                        reason = shown.drift or f"{self._plural} say {shown}"
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError:
            raise MeshConfirmationTimeout(f"{state} does not show after {timeout:g} s: {reason}") from None

    async def finalise(self, service: Service, fence: Fence) -> None:
        """Take sticky rules and mirrors out, where one cohort carries everything."""
        found = self.route(service).state_of(await self.fetch(service))
        plain = TrafficSplit.with_canary(found.split.canary)
        if found.split.is_terminal and (found.split != plain or found.drift is not None):
            await self.change(service, plain, fence, expected=None)


def _mesh_error(error: KubernetesRefused | KubernetesUnreachable, path: str) -> WeightshiftError:
    if isinstance(error, KubernetesUnreachable):
        return MeshUnreachable(str(error))
    if error.status in _FORBIDDEN:
        return Unauthorised(f"{error}; grant get and patch on {path}")
    if error.status == 404:
        return RouteInvalid(f"there is no {path}; create it, or correct the settings of the mesh")
    return RouteInvalid(f"{path} was not changed: {error}")
