"""What the admission policies let through, and what they do not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.admission import Policy
from tests.deploy.manifests import OVERLAYS, Manifest, containers, find, objects
from tests.kubernetes_api.patches import json_patch
from tests.kubernetes_api.schemas import custom_resources
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.mesh.http_route import HttpRouteDialect
from weightshift.mesh.route_dialect import Dialect
from weightshift.mesh.virtual_service import VirtualServiceDialect
from weightshift.mesh.weighted_route import WeightedRoute

DIGEST = "sha256:" + "0" * 64


def policy(overlay: str, name: str) -> Policy:
    return Policy(find(overlay, "ValidatingAdmissionPolicy", name)["spec"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_policy_is_bound_and_denies(overlay: str) -> None:
    bound = {
        one["spec"]["policyName"]: one["spec"]["validationActions"]
        for one in objects(overlay, "ValidatingAdmissionPolicyBinding")
    }
    for one in objects(overlay, "ValidatingAdmissionPolicy"):
        assert "Deny" in bound.pop(one["metadata"]["name"])
        assert one["spec"]["failurePolicy"] == "Fail"
    assert not bound


def pod(image: str) -> Manifest:
    return {"spec": {"containers": [{"image": "fine:1.0"}, {"image": image}]}}


@pytest.mark.parametrize(
    "image",
    [
        "weightshift/runtime:0.1.0",
        "registry.example.com:5000/weightshift/runtime:0.1.0",
        f"registry.example.com:5000/weightshift/runtime@{DIGEST}",
        f"weightshift/runtime:latest@{DIGEST}",
    ],
)
def test_an_image_with_a_version_is_let_through(image: str) -> None:
    assert policy("istio", "weightshift-pinned-images").refusals(pod(image)) == []


@pytest.mark.parametrize(
    "image",
    [
        "weightshift/runtime",
        "weightshift/runtime:latest",
        "registry.example.com:5000/weightshift/runtime",
        "weightshift/runtime@sha256:0",
    ],
)
def test_an_image_without_a_version_is_refused(image: str) -> None:
    refused = policy("istio", "weightshift-pinned-images").refusals(pod(image))
    assert refused == [f"name a digest or a version for {image}"]


@pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
def test_no_container_of_a_pod_is_forgotten(kind: str) -> None:
    sneaky = pod("fine:1.0")
    sneaky["spec"][kind] = [{"image": "sneaky"}]
    assert policy("istio", "weightshift-pinned-images").refusals(sneaky)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_manifests_own_pods_are_let_through(overlay: str) -> None:
    for container in containers(overlay):
        assert policy(overlay, "weightshift-pinned-images").refusals({"spec": container.pod}) == []


WORKER = "system:serviceaccount:weightshift:weightshift-worker"
SERVICE = Service(model="ranker", environment="production")
DIALECTS: dict[str, tuple[str, Dialect, str, str]] = {
    "istio": ("VirtualService", VirtualServiceDialect(), "stable", "canary"),
    "gateway-api": ("HTTPRoute", HttpRouteDialect(), "ranker-stable", "ranker-canary"),
}
SPLITS = [
    TrafficSplit.with_canary(5),
    TrafficSplit.with_canary(25, sticky=True),
    TrafficSplit.with_canary(50, sticky=True),
    TrafficSplit.with_canary(100, mirrored=5),
    TrafficSplit.all_to(Cohort.STABLE),
]
Edit = Callable[[Manifest], Any]


def route(overlay: str) -> Manifest:
    """The overlay's route as the API server stores it, with somebody's own rule and annotation."""
    kind, *_ = DIALECTS[overlay]
    (resource,) = [one for one in custom_resources().values() if one.kind == kind]
    found = copy.deepcopy(find(overlay, kind, "ranker"))
    found["metadata"]["annotations"] = {"owner": "search"}
    rules = found["spec"][resource_rules(overlay)]
    rules.append({**copy.deepcopy(rules[0]), "name": "other"})
    return resource.admit(found)


def resource_rules(overlay: str) -> str:
    return DIALECTS[overlay][1].rules_field


def written(overlay: str, stored: Manifest, split: TrafficSplit, sequence: int) -> Manifest:
    """The route after the worker wrote a split."""
    _, dialect, stable, canary = DIALECTS[overlay]
    weighted = WeightedRoute(
        service=SERVICE, dialect=dialect, rule="weightshift", stable=stable, canary=canary
    )
    patched = json_patch(stored, weighted.operations(stored, split, Fence(epoch=1, sequence=sequence)))
    (resource,) = [one for one in custom_resources().values() if one.kind == stored["kind"]]
    return resource.admit(patched)


@pytest.mark.parametrize("overlay", DIALECTS)
def test_every_write_of_the_worker_is_let_through(overlay: str) -> None:
    stored = route(overlay)
    for sequence, split in enumerate(SPLITS):
        following = written(overlay, stored, split, sequence)
        assert following != stored
        scope = policy(overlay, "weightshift-worker-scope").refusals(following, stored, username=WORKER)
        owner = policy(overlay, "weightshift-owned-traffic").refusals(following, stored, username=WORKER)
        assert scope == owner == [], split
        stored = following


@pytest.mark.parametrize("overlay", DIALECTS)
def test_nobody_else_moves_traffic_but_who_breaks_the_glass(overlay: str) -> None:
    owned = policy(overlay, "weightshift-owned-traffic")
    stored = written(overlay, route(overlay), TrafficSplit.all_to(Cohort.STABLE), 1)
    for sequence, split in enumerate(SPLITS[:-1], start=2):
        following = written(overlay, stored, split, sequence)
        assert owned.refusals(following, stored)
        assert owned.refusals(following, stored, groups=("weightshift:break-glass",)) == []
        # What the worker wrote is not for others to take back either.
        assert owned.refusals(stored, following)


def drop_annotation(one: Manifest) -> None:
    del one["metadata"]["annotations"]["weightshift.dev/command"]


def first_backend(one: Manifest, rule: int) -> Manifest:
    rules = one["spec"].get("http") or one["spec"]["rules"]
    backends: list[Manifest] = rules[rule].get("route") or rules[rule]["backendRefs"]
    return backends[0]


def rules_of(one: Manifest) -> list[Manifest]:
    found: list[Manifest] = one["spec"].get("http") or one["spec"]["rules"]
    return found


OWNED_EDITS: dict[str, Edit] = {
    "its weight": lambda one: first_backend(one, 0).update(weight=99),
    "its annotation": drop_annotation,
    "its rule": lambda one: rules_of(one).pop(0),
    "a rule of its name": lambda one: rules_of(one).insert(
        0, {**copy.deepcopy(rules_of(one)[1]), "name": "weightshift-sticky-canary"}
    ),
}
FOREIGN_EDITS: dict[str, Edit] = {
    "another rule's weight": lambda one: first_backend(one, 1).update(weight=1),
    "another rule": lambda one: rules_of(one).pop(1),
    "another annotation": lambda one: one["metadata"]["annotations"].update(owner="mallory"),
    "another annotation gone": lambda one: one["metadata"]["annotations"].pop("owner"),
}
FOREIGN_TO_THE_WORKER: dict[str, Edit] = {
    **FOREIGN_EDITS,
    "a destination": lambda one: (first_backend(one, 0).get("destination") or first_backend(one, 0)).update(
        {"host": "elsewhere"} if "http" in one["spec"] else {"name": "elsewhere"}
    ),
    "host names": lambda one: one["spec"].update(
        {"hosts": ["elsewhere"]} if "http" in one["spec"] else {"hostnames": ["elsewhere"]}
    ),
    "gateways": lambda one: one["spec"].update(
        {"gateways": ["elsewhere"]} if "http" in one["spec"] else {"parentRefs": [{"name": "elsewhere"}]}
    ),
    "a sticky rule to elsewhere": lambda one: rules_of(one).insert(0, elsewhere(rules_of(one)[0])),
}


def elsewhere(rule: Manifest) -> Manifest:
    moved = {**copy.deepcopy(rule), "name": "weightshift-sticky-canary"}
    for backend in moved.get("route") or moved["backendRefs"]:
        if "destination" in backend:
            backend["destination"]["host"] = "elsewhere"
        else:
            backend["name"] = "elsewhere"
    return moved


@pytest.mark.parametrize("overlay", DIALECTS)
@pytest.mark.parametrize("edit", OWNED_EDITS.values(), ids=OWNED_EDITS)
def test_an_edit_of_what_the_worker_owns_is_refused(overlay: str, edit: Edit) -> None:
    stored = written(overlay, route(overlay), TrafficSplit.with_canary(5), 1)
    edited = copy.deepcopy(stored)
    edit(edited)
    assert policy(overlay, "weightshift-owned-traffic").refusals(edited, stored)


@pytest.mark.parametrize("overlay", DIALECTS)
@pytest.mark.parametrize("edit", FOREIGN_EDITS.values(), ids=FOREIGN_EDITS)
def test_an_edit_of_anything_else_is_let_through(overlay: str, edit: Edit) -> None:
    stored = written(overlay, route(overlay), TrafficSplit.with_canary(5), 1)
    edited = copy.deepcopy(stored)
    edit(edited)
    assert policy(overlay, "weightshift-owned-traffic").refusals(edited, stored) == []


@pytest.mark.parametrize("overlay", DIALECTS)
@pytest.mark.parametrize("edit", FOREIGN_TO_THE_WORKER.values(), ids=FOREIGN_TO_THE_WORKER)
def test_the_worker_changes_nothing_else(overlay: str, edit: Edit) -> None:
    stored = written(overlay, route(overlay), TrafficSplit.with_canary(5), 1)
    edited = copy.deepcopy(stored)
    edit(edited)
    assert edited != stored
    assert policy(overlay, "weightshift-worker-scope").refusals(edited, stored, username=WORKER)


@pytest.mark.parametrize("overlay", DIALECTS)
def test_a_route_may_be_set_up_before_the_first_release(overlay: str) -> None:
    stored = route(overlay)
    edited = copy.deepcopy(stored)
    first_backend(edited, 0)["weight"] = 50
    assert policy(overlay, "weightshift-owned-traffic").refusals(edited, stored) == []
