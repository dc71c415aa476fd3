"""The worker can do in the cluster what its adapters do, by name, and nothing beside it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.manifests import Container, Manifest, containers, find, objects
from tests.deploy.test_admission import DIALECTS, SERVICE, WORKER, policy
from tests.kubernetes_api.patches import json_patch
from weightshift.cluster.holding import put_back, raise_to
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.traffic import TrafficSplit
from weightshift.mesh.weighted_route import WeightedRoute
from weightshift.settings import ClusterSettings, MeshSettings

FIELDS = {"Deployment": "replicas", "HorizontalPodAutoscaler": "minReplicas"}
Edit = Callable[[Manifest], Any]


def worker(overlay: str) -> Container:
    (found,) = [one for one in containers(overlay) if one.spec["name"] == "worker"]
    return found


def settings(overlay: str, monkeypatch: pytest.MonkeyPatch) -> tuple[MeshSettings, ClusterSettings]:
    for name, value in worker(overlay).environment().items():
        monkeypatch.setenv(name, value)
    return MeshSettings(), ClusterSettings()


def named(template: str, cohort: Cohort | None = None) -> str:
    """Fill a name of the settings in, as the adapters do."""
    filled = template.replace("$model", SERVICE.model).replace("$environment", SERVICE.environment)
    return filled.replace("$cohort", cohort.value) if cohort else filled


@pytest.mark.parametrize("overlay", DIALECTS)
def test_the_settings_find_the_route_in_the_manifests(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, _ = settings(overlay, monkeypatch)
    kind, dialect, *_ = DIALECTS[overlay]
    stored = find(overlay, kind, named(mesh.route_object))
    assert stored["metadata"]["namespace"] == mesh.namespace
    route = WeightedRoute(
        service=SERVICE,
        dialect=dialect,
        rule=mesh.route,
        stable=named(mesh.stable),
        canary=named(mesh.canary),
    )
    state = route.state_of(stored)
    assert state.split == TrafficSplit.all_to(Cohort.STABLE)
    assert state.drift is None
    if mesh.destination_rule:
        subsets = find(overlay, "DestinationRule", named(mesh.destination_rule))["spec"]["subsets"]
        assert {one["name"] for one in subsets} == {mesh.stable, mesh.canary}


@pytest.mark.parametrize("overlay", DIALECTS)
def test_access_is_exactly_what_the_adapters_ask_for(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, cluster = settings(overlay, monkeypatch)
    route = {"istio": "virtualservices", "gateway-api": "httproutes"}[overlay]
    wanted = {(route, named(mesh.route_object)): {"get", "patch"}}
    if mesh.destination_rule:
        wanted["destinationrules", named(mesh.destination_rule)] = {"get"}
    for cohort in Cohort:
        wanted["deployments", named(cluster.deployment, cohort)] = {"get", "patch"}
        wanted["horizontalpodautoscalers", named(cluster.autoscaler, cohort)] = {"get", "patch"}
    granted = {
        (resource, name): set(rule["verbs"])
        for role in objects(overlay, "Role")
        for rule in role["rules"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    assert granted == wanted
    for binding in objects(overlay, "RoleBinding"):
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "weightshift-worker", "namespace": "weightshift"}
        ]


def held(stored: Manifest, wanted: int) -> Manifest:
    """The object while pods are held."""
    operations = raise_to(stored, FIELDS[stored["kind"]], wanted, Fence(epoch=1, sequence=1))
    following: Manifest = json_patch(stored, operations)
    return following


@pytest.mark.parametrize("overlay", DIALECTS)
@pytest.mark.parametrize("kind", FIELDS)
def test_holding_pods_and_letting_them_go_is_let_through(overlay: str, kind: str) -> None:
    scope = policy(overlay, "weightshift-worker-capacity")
    stored = find(overlay, kind, "ranker-canary")
    raised = held(stored, 12)
    assert raised["spec"][FIELDS[kind]] == 12
    assert scope.refusals(raised, stored, username=WORKER) == []
    freed = json_patch(raised, put_back(raised, FIELDS[kind], Fence(epoch=1, sequence=2)))
    assert freed["spec"][FIELDS[kind]] == stored["spec"].get(FIELDS[kind], 1)
    assert scope.refusals(freed, raised, username=WORKER) == []


EDITS: dict[str, tuple[str, Edit]] = {
    "an image": (
        "Deployment",
        lambda one: one["spec"]["template"]["spec"]["containers"][0].update(image="evil:1.0"),
    ),
    "an account": (
        "Deployment",
        lambda one: one["spec"]["template"]["spec"].update(serviceAccountName="default"),
    ),
    "a pause": ("Deployment", lambda one: one["spec"].update(paused=True)),
    "a label": ("Deployment", lambda one: one["metadata"]["labels"].update(owner="mallory")),
    "an annotation": ("Deployment", lambda one: one["metadata"]["annotations"].update(owner="mallory")),
    "an autoscaler's target": (
        "HorizontalPodAutoscaler",
        lambda one: one["spec"]["scaleTargetRef"].update(name="other"),
    ),
    "an autoscaler's ceiling": ("HorizontalPodAutoscaler", lambda one: one["spec"].update(maxReplicas=999)),
    "what an autoscaler follows": ("HorizontalPodAutoscaler", lambda one: one["spec"].pop("metrics")),
}


@pytest.mark.parametrize("overlay", DIALECTS)
@pytest.mark.parametrize(("kind", "edit"), EDITS.values(), ids=EDITS)
def test_the_worker_changes_nothing_but_numbers(overlay: str, kind: str, edit: Edit) -> None:
    stored = find(overlay, kind, "ranker-canary")
    edited = copy.deepcopy(held(stored, 12))
    edit(edited)
    scope = policy(overlay, "weightshift-worker-capacity")
    assert scope.refusals(edited, stored, username=WORKER)
    # Everybody else is bound by their own roles.
    assert scope.refusals(edited, stored, username="ada") == []
