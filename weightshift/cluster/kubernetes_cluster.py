"""The cluster adapter for Kubernetes: Deployments, their autoscalers, and what their Services route to."""

import asyncio
from collections.abc import Callable, Collection
from string import Template
from typing import Any

from weightshift.cluster.client import KubernetesClient
from weightshift.cluster.holding import put_back, raise_to, was_before
from weightshift.contracts.cluster import Pool
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.errors import KubernetesRefused, ScaleRefused
from weightshift.settings import ClusterSettings

Object = dict[str, Any]

_DEPLOYMENTS = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
_AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers/{name}"
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
_PODS = "/api/v1/namespaces/{namespace}/pods/{name}"
_SERVICE_LABEL = "kubernetes.io/service-name"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_KEPT = "1000"


class KubernetesCluster:
    """One Deployment per cohort. Close it with `aclose`.

    Needs `get` and `patch` on the named Deployments and autoscalers. Where the settings name a Service, also
    `list` of endpoint slices; with `deletion_cost`, `patch` of pods: neither can be granted by name.
    """

    def __init__(self, *, client: KubernetesClient, settings: ClusterSettings) -> None:
        self._client = client
        self._settings = settings

    async def aclose(self) -> None:
        """Close the connections to the API."""
        await self._client.aclose()

    async def pool(self, service: Service, cohort: Cohort) -> Pool | None:
        """Return what the Deployment and the Service's endpoint slices say. Raises `ScaleRefused`."""
        stored = await self._get(self._path(_DEPLOYMENTS, self._settings.deployment, service, cohort))
        routed = await self._routed(service, cohort) if self._settings.service else (None, None)
        return Pool(
            wanted=int(stored["spec"].get("replicas", 1)),
            ready=int(stored.get("status", {}).get("readyReplicas", 0)),
            routed=routed[0],
            unrouted=routed[1],
        )

    async def hold(self, service: Service, cohort: Cohort, replicas: int | None, fence: Fence) -> None:
        """Raise the Deployment's replicas, and the autoscaler's floor first, where there is one.

        Raises `StaleFence`, and `ScaleRefused` when the autoscaler does not allow as many.
        """
        path = self._path(_DEPLOYMENTS, self._settings.deployment, service, cohort)
        wanted = replicas
        if wanted is None:
            wanted = int((await self._get(path))["spec"].get("replicas", 1))
        if self._settings.autoscaler:
            autoscaler = self._path(_AUTOSCALERS, self._settings.autoscaler, service, cohort)
            await self._change(autoscaler, lambda stored: _raise_floor(stored, wanted, fence))
        if replicas is not None:
            await self._change(path, lambda stored: raise_to(stored, "replicas", wanted, fence))

    async def let_go(
        self, service: Service, cohort: Cohort, fence: Fence, *, keep: Collection[str] = ()
    ) -> None:
        """Put the autoscaler's floor back, or without one the Deployment's replicas.

        An autoscaler does nothing for a Deployment without replicas, so that is put back in any case.
        Raises `StaleFence`, `ScaleRefused`.
        """
        if keep and self._settings.deletion_cost:
            await asyncio.gather(*(self._make_costly(service, cohort, name) for name in keep))
        scaled = bool(self._settings.autoscaler)
        if scaled:
            autoscaler = self._path(_AUTOSCALERS, self._settings.autoscaler, service, cohort)
            await self._change(autoscaler, lambda stored: put_back(stored, "minReplicas", fence))
        path = self._path(_DEPLOYMENTS, self._settings.deployment, service, cohort)
        await self._change(path, lambda stored: _put_replicas_back(stored, fence, scaled=scaled))

    async def _routed(self, service: Service, cohort: Cohort) -> tuple[int, int]:
        """Count the addresses of the Service that get requests, and those that do not."""
        name = self._named(self._settings.service, service, cohort)
        path = _SLICES.format(namespace=self._named(self._settings.namespace, service, cohort))
        try:
            slices = await self._client.list_items(path, labels={_SERVICE_LABEL: name})
        except KubernetesRefused as error:
            raise ScaleRefused(f"the endpoint slices of {name} cannot be listed: {error}") from error
        ready: set[str] = set()
        unready: set[str] = set()
        for one in slices:
            for endpoint in one.get("endpoints") or []:
                # A condition that is left out counts as ready.
                is_ready = endpoint.get("conditions", {}).get("ready", True) is not False
                (ready if is_ready else unready).update(endpoint["addresses"])
        return len(ready), len(unready - ready)

    async def _make_costly(self, service: Service, cohort: Cohort, name: str) -> None:
        """Have a pod be among the last to go. One that is gone already needs nothing."""
        namespace = self._named(self._settings.namespace, service, cohort)
        path = _PODS.format(namespace=namespace, name=name)
        try:
            await self._client.compare_and_set(path, _costly)
        except KubernetesRefused as error:
            if error.status != 404:
                raise ScaleRefused(f"{path} was not changed: {error}") from error

    async def _get(self, path: str) -> Object:
        try:
            return await self._client.get(path)
        except KubernetesRefused as error:
            raise ScaleRefused(f"{path} cannot be read: {error}; see WEIGHTSHIFT_CLUSTER_*") from error

    async def _change(self, path: str, change: Callable[[Object], list[Object]]) -> None:
        try:
            await self._client.compare_and_set(path, change)
        except KubernetesRefused as error:
            raise ScaleRefused(f"{path} was not changed: {error}; see WEIGHTSHIFT_CLUSTER_*") from error

    def _path(self, path: str, template: str, service: Service, cohort: Cohort) -> str:
        namespace = self._named(self._settings.namespace, service, cohort)
        return path.format(namespace=namespace, name=self._named(template, service, cohort))

    @staticmethod
    def _named(template: str, service: Service, cohort: Cohort) -> str:
        return Template(template).safe_substitute(
            model=service.model, environment=service.environment, cohort=cohort.value
        )


def _raise_floor(stored: Object, wanted: int, fence: Fence) -> list[Object]:
    highest = int(stored["spec"]["maxReplicas"])
    if wanted > highest:
        name = stored["metadata"]["name"]
        raise ScaleRefused(f"autoscaler {name} allows {highest} pods, not {wanted}; raise its maxReplicas")
    return raise_to(stored, "minReplicas", wanted, fence)


def _put_replicas_back(stored: Object, fence: Fence, *, scaled: bool) -> list[Object]:
    if scaled and was_before(stored) != 0:
        return []
    return put_back(stored, "replicas", fence)


def _costly(stored: Object) -> list[Object]:
    annotations = stored["metadata"].get("annotations")
    if annotations is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {_DELETION_COST: _KEPT}}]
    if annotations.get(_DELETION_COST) == _KEPT:
        return []
    path = "/metadata/annotations/" + _DELETION_COST.replace("/", "~1")
    return [{"op": "add", "path": path, "value": _KEPT}]
