"""A whole release over the Kubernetes adapters: real HTTP, real patches, the workflow's own commands."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes_api.objects import (
    accept,
    gateway_mesh,
    http_route,
    istio_mesh,
    kubernetes_settings,
    virtual_service,
)
from tests.kubernetes_api.server import Fault, KubernetesApi, kubernetes_api
from tests.workflow.harness import FAST_PLAN, Harness, time_skipping_server
from weightshift.cluster.client import KubernetesClient
from weightshift.cluster.kubernetes_cluster import KubernetesCluster
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import Sticky
from weightshift.contracts.release import Outcome
from weightshift.mesh.command_annotation import ANNOTATION
from weightshift.settings import ClusterSettings

Stored = dict[str, Any]


def owned(stored: Stored) -> list[Stored]:
    """Return the two weighted backends of the rule that is released through."""
    rules = stored["spec"].get("http") or stored["spec"]["rules"]
    rule = next(rule for rule in rules if rule["name"] == "predictions")
    backends: list[Stored] = rule["route" if "route" in rule else "backendRefs"]
    return backends


class Recorder:
    """Accepts routes as a gateway does, keeps every weight of the canary, and has pods be ready."""

    def __init__(self) -> None:
        self.weights: list[int] = []

    def __call__(self, plural: str, stored: Stored) -> None:
        accept(plural, stored)
        if plural == "deployments":
            stored["status"] = {"readyReplicas": stored["spec"]["replicas"]}
        elif plural in ("virtualservices", "httproutes"):
            weight = owned(stored)[1]["weight"]
            if self.weights[-1:] != [weight]:
                self.weights.append(weight)


@asynccontextmanager
async def releasing(plural: str, directory: Path) -> AsyncIterator[tuple[Harness, KubernetesApi, Recorder]]:
    """A service on which v41 is released through a route of this kind."""
    build: Callable[..., Stored] = virtual_service if plural == "virtualservices" else http_route
    async with kubernetes_api() as api, time_skipping_server() as environment:
        recorder = Recorder()
        api.controller = recorder
        api.create(plural, build())
        for cohort in Cohort:
            name = f"ranker-{cohort}"
            api.create("deployments", {"metadata": {"name": name}, "spec": {"replicas": 2}})
            api.allow("get patch", "deployments", name)
        harness = Harness(environment)
        mesh = (istio_mesh if plural == "virtualservices" else gateway_mesh)(api, directory)
        client = KubernetesClient(settings=kubernetes_settings(api, directory))
        cluster = KubernetesCluster(client=client, settings=ClusterSettings())
        harness.mesh, harness.cluster = mesh, cluster  # type: ignore[assignment]
        async with harness.running():
            yield harness, api, recorder
        await mesh.aclose()
        await cluster.aclose()


@pytest.mark.parametrize("plural", ["virtualservices", "httproutes"])
async def test_a_release_leaves_the_route_as_its_owner_wrote_it(plural: str, tmp_path: Path) -> None:
    async with releasing(plural, tmp_path) as (harness, api, recorder):
        before = api.get(plural, "ranker")
        plan = FAST_PLAN.model_copy(update={"sticky": Sticky.USER, "canary_replicas": 2})
        api.faults += [Fault("PATCH", status=500, applied=True), Fault("PATCH", cut=True, applied=True)]
        assert (await harness.release("v42", plan)).outcome is Outcome.PROMOTED
        after = api.get(plural, "ranker")
        assert recorder.weights == [0, 5, 25, 50, 100, 0]
        assert after["spec"] == before["spec"]
        assert after["metadata"]["annotations"][ANNOTATION] != before["metadata"]["annotations"][ANNOTATION]
        assert api.get("deployments", "ranker-canary")["spec"] == {"replicas": 2}


async def test_a_hand_on_the_weights_ends_a_release_and_its_rollback_takes_them_back(tmp_path: Path) -> None:
    async with releasing("virtualservices", tmp_path) as (harness, api, recorder):

        def edit(stored: Stored) -> None:
            owned(stored)[0]["weight"], owned(stored)[1]["weight"] = 20, 80

        harness.observations.blocked.add(25)
        await harness.start("v42")
        await harness.until_judging(25)
        api.edit("virtualservices", "ranker", edit)
        harness.observations.blocked.clear()
        result = await harness.result()
        assert result.outcome is Outcome.ROLLED_BACK
        assert "the weights are 20/80, and the last command set 75/25" in result.reason
        assert recorder.weights == [0, 5, 25, 80, 0]
