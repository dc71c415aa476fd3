"""One contract for both clusters, and what is Kubernetes' own: autoscalers, endpoint slices, rights."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes_api.objects import kubernetes_settings
from tests.kubernetes_api.server import KubernetesApi, kubernetes_api
from weightshift.cluster.base import Cluster, NoCluster
from weightshift.cluster.client import KubernetesClient
from weightshift.cluster.kubernetes_cluster import KubernetesCluster
from weightshift.cluster.memory import MemoryCluster
from weightshift.cluster.open_cluster import open_cluster
from weightshift.contracts.cluster import Pool
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.errors import KubernetesUnreachable, ScaleRefused, StaleFence
from weightshift.settings import ClusterSettings

SERVICE = Service(model="ranker", environment="test")
CANARY, STABLE = Cohort.CANARY, Cohort.STABLE


def fence(sequence: int) -> Fence:
    return Fence(epoch=1, sequence=sequence)


def make_ready(plural: str, stored: dict[str, Any]) -> None:
    """Have a Deployment's pods be ready at once."""
    if plural == "deployments":
        stored["status"] = {"readyReplicas": stored["spec"].get("replicas", 1)}


def deployment(cohort: Cohort, replicas: int) -> dict[str, Any]:
    return {"metadata": {"name": f"ranker-{cohort}"}, "spec": {"replicas": replicas}}


def autoscaler(cohort: Cohort, **limits: int) -> dict[str, Any]:
    return {"metadata": {"name": f"ranker-{cohort}"}, "spec": {"maxReplicas": 8, **limits}}


@asynccontextmanager
async def on_kubernetes(directory: Path, **settings: Any) -> AsyncIterator[tuple[KubernetesApi, Cluster]]:
    async with kubernetes_api() as api:
        api.controller = make_ready
        for cohort in Cohort:
            api.create("deployments", deployment(cohort, 2))
            api.allow("get patch", "deployments", f"ranker-{cohort}")
        client = KubernetesClient(settings=kubernetes_settings(api, directory))
        cluster = KubernetesCluster(client=client, settings=ClusterSettings(**settings))
        yield api, cluster
        await cluster.aclose()


@pytest.fixture(params=["memory", "kubernetes"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    if request.param == "memory":
        yield MemoryCluster()
        return
    async with on_kubernetes(tmp_path) as (_, real):
        yield real


async def counts(cluster: Cluster, cohort: Cohort = CANARY) -> tuple[int, int]:
    pool = await cluster.pool(SERVICE, cohort)
    assert pool is not None
    return pool.wanted, pool.ready


async def test_pods_are_held_and_let_go(cluster: Cluster) -> None:
    assert await counts(cluster) == (2, 2)
    await cluster.hold(SERVICE, CANARY, 5, fence(1))
    await cluster.hold(SERVICE, CANARY, 5, fence(1))
    assert await counts(cluster) == (5, 5)
    assert await counts(cluster, STABLE) == (2, 2)
    await cluster.let_go(SERVICE, CANARY, fence(2))
    await cluster.let_go(SERVICE, CANARY, fence(2))
    assert await counts(cluster) == (2, 2)


async def test_fewer_pods_than_there_are_is_no_reason_to_take_any_away(cluster: Cluster) -> None:
    await cluster.hold(SERVICE, CANARY, 1, fence(1))
    assert await counts(cluster) == (2, 2)


async def test_late_commands_are_refused(cluster: Cluster) -> None:
    await cluster.hold(SERVICE, CANARY, 5, fence(3))
    for late in (cluster.hold(SERVICE, CANARY, 9, fence(2)), cluster.let_go(SERVICE, CANARY, fence(2))):
        with pytest.raises(StaleFence, match=r"1\.3"):
            await late
    assert await counts(cluster) == (5, 5)


async def test_an_autoscalers_floor_is_raised_and_put_back(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path, autoscaler="$model-$cohort") as (api, cluster):
        api.create("horizontalpodautoscalers", autoscaler(CANARY, minReplicas=1))
        api.allow("get patch", "horizontalpodautoscalers", "ranker-canary")
        await cluster.hold(SERVICE, CANARY, 4, fence(1))
        spec = api.get("horizontalpodautoscalers", "ranker-canary")["spec"]
        assert spec == {"maxReplicas": 8, "minReplicas": 4}
        assert await counts(cluster) == (4, 4)
        await cluster.let_go(SERVICE, CANARY, fence(2))
        assert api.get("horizontalpodautoscalers", "ranker-canary")["spec"]["minReplicas"] == 1
        assert await counts(cluster) == (4, 4), "the autoscaler's to take away"


async def test_a_deployment_without_pods_goes_back_to_none_also_beside_an_autoscaler(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path, autoscaler="$model-$cohort") as (api, cluster):
        api.create("deployments", deployment(CANARY, 0))
        api.create("horizontalpodautoscalers", autoscaler(CANARY))
        api.allow("get patch", "horizontalpodautoscalers", "ranker-canary")
        await cluster.hold(SERVICE, CANARY, 2, fence(1))
        assert await counts(cluster) == (2, 2)
        await cluster.let_go(SERVICE, CANARY, fence(2))
        assert await counts(cluster) == (0, 0)


async def test_as_many_as_now_keeps_an_autoscaler_from_taking_any_away(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path, autoscaler="$model-$cohort") as (api, cluster):
        api.create("deployments", deployment(STABLE, 6))
        api.create("horizontalpodautoscalers", autoscaler(STABLE, minReplicas=2))
        api.allow("get patch", "horizontalpodautoscalers", "ranker-stable")
        await cluster.hold(SERVICE, STABLE, None, fence(1))
        assert api.get("horizontalpodautoscalers", "ranker-stable")["spec"]["minReplicas"] == 6
        await cluster.let_go(SERVICE, STABLE, fence(2))
        assert api.get("horizontalpodautoscalers", "ranker-stable")["spec"]["minReplicas"] == 2


async def test_more_than_an_autoscaler_allows_is_refused_before_anything_changes(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path, autoscaler="$model-$cohort") as (api, cluster):
        api.create("horizontalpodautoscalers", autoscaler(CANARY))
        api.allow("get patch", "horizontalpodautoscalers", "ranker-canary")
        with pytest.raises(ScaleRefused, match="allows 8 pods, not 9"):
            await cluster.hold(SERVICE, CANARY, 9, fence(1))
        assert await counts(cluster) == (2, 2)


async def test_unready_and_unrouted_pods_are_seen(tmp_path: Path) -> None:
    def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
        return {"addresses": [address], "conditions": conditions}

    def endpoint_slice(name: str, service: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
        labels = {"kubernetes.io/service-name": service}
        return {"metadata": {"name": name, "labels": labels}, "endpoints": list(endpoints)}

    async with on_kubernetes(tmp_path, service="$model-$cohort") as (api, cluster):
        first = (endpoint("10.0.0.1", ready=True), endpoint("10.0.0.2", ready=False))
        api.create("endpointslices", endpoint_slice("a", "ranker-canary", *first))
        api.create("endpointslices", endpoint_slice("b", "ranker-canary", endpoint("10.0.0.3")))
        api.create("endpointslices", endpoint_slice("c", "ranker-stable", endpoint("10.0.0.9", ready=True)))
        with pytest.raises(ScaleRefused, match="cannot be listed"):
            await cluster.pool(SERVICE, CANARY)
        api.allow("list", "endpointslices", "")
        pool = await cluster.pool(SERVICE, CANARY)
        assert pool == Pool(wanted=2, ready=2, routed=2, unrouted=1)
        assert pool.shortfall(2) is None
        assert pool.shortfall(3) == "2 of 3 pods are ready"
        assert (
            Pool(wanted=3, ready=3, routed=2, unrouted=1).shortfall(3) == "the Service routes to 2 of 3 pods"
        )


async def test_the_pods_to_keep_are_the_last_to_go(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path, deletion_cost=True) as (api, cluster):
        api.create("pods", {"metadata": {"name": "ranker-canary-a"}, "spec": {}})
        api.allow("get patch", "pods", "*")
        await cluster.hold(SERVICE, CANARY, 3, fence(1))
        await cluster.let_go(SERVICE, CANARY, fence(2), keep=("ranker-canary-a", "gone-already"))
        annotations = api.get("pods", "ranker-canary-a")["metadata"]["annotations"]
        assert annotations == {"controller.kubernetes.io/pod-deletion-cost": "1000"}


async def test_named_objects_are_got_and_patched_and_nothing_else(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path) as (api, cluster):
        await cluster.hold(SERVICE, CANARY, 3, fence(1))
        await cluster.pool(SERVICE, CANARY)
        await cluster.let_go(SERVICE, CANARY, fence(2), keep=("ranker-canary-a",))
        assert {method for method, _ in api.requests} == {"GET", "PATCH"}
        assert {path.rsplit("/", 1)[1] for _, path in api.requests} == {"ranker-canary"}


async def test_a_missing_deployment_is_named(tmp_path: Path) -> None:
    async with on_kubernetes(tmp_path, deployment="other") as (_, cluster):
        with pytest.raises(ScaleRefused, match=r"deployments/other.*WEIGHTSHIFT_CLUSTER"):
            await cluster.hold(SERVICE, CANARY, 3, fence(1))


async def test_without_a_cluster_nothing_is_known_and_nothing_can_be_asked_for() -> None:
    cluster = open_cluster(ClusterSettings())
    assert isinstance(cluster, NoCluster)
    assert await cluster.pool(SERVICE, CANARY) is None
    await cluster.hold(SERVICE, STABLE, None, fence(1))
    await cluster.let_go(SERVICE, STABLE, fence(2))
    with pytest.raises(ScaleRefused, match="WEIGHTSHIFT_CLUSTER_ADAPTER"):
        await cluster.hold(SERVICE, CANARY, 2, fence(1))
    await cluster.aclose()


async def test_settings_name_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHTSHIFT_CLUSTER_ADAPTER", "kubernetes")
    cluster = open_cluster(ClusterSettings())
    with pytest.raises(KubernetesUnreachable, match="KUBECONFIG"):
        await cluster.pool(SERVICE, CANARY)
    await cluster.aclose()
