"""Every object of every overlay is one that an API server takes, and hardened."""

import copy
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic_settings import BaseSettings

from tests.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    ROOT,
    Container,
    Manifest,
    all_containers,
    find,
    kubectl,
    objects,
    rendered,
)
from tests.kubernetes_api.schemas import ResourceKind, custom_resources
from weightshift.settings import MeshSettings, NotifySettings, TemporalSettings

KUBERNETES = "1.34"
"""The oldest version the manifests are for: pauses of preStop and of native sidecars are stable there."""

CUSTOM: dict[str, ResourceKind] = {one.kind: one for one in custom_resources().values()}
OPERATORS = {"PodMonitor", "PrometheusRule", "PeerAuthentication"}
"""Kinds of operators whose schemas the deployment check has, not this suite."""

EVERY = [(overlay, one) for overlay in OVERLAYS for one in rendered(overlay) if one["kind"] not in OPERATORS]
IDS = [f"{overlay}/{one['kind']}/{one['metadata']['name']}" for overlay, one in EVERY]


def check(document: Manifest) -> None:
    """Raises what an API server would have to say."""
    if document["kind"] not in CUSTOM:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    kind = CUSTOM[document["kind"]]
    assert document["apiVersion"] == kind.api_version
    assert holds(kind.admit(document)["spec"], document["spec"]), "a field is not in the schema"


@pytest.mark.parametrize("document", [one for _, one in EVERY], ids=IDS)
def test_an_object_is_valid(document: Manifest) -> None:
    check(document)


@pytest.mark.parametrize("kind", ["Deployment", "NetworkPolicy", "VirtualService", "DestinationRule"])
def test_a_misspelt_field_would_be_noticed(kind: str) -> None:
    document = copy.deepcopy(objects("istio", kind)[0])
    document["spec"]["replica"] = 3
    with pytest.raises((kubernetes_validate.ValidationError, AssertionError)):
        check(document)


def holds(stored: Any, written: Any) -> bool:
    """Whether everything that was written is still there."""
    if isinstance(written, dict):
        return isinstance(stored, dict) and all(
            name in stored and holds(stored[name], value) for name, value in written.items()
        )
    if isinstance(written, list):
        return len(stored) == len(written) and all(map(holds, stored, written))
    return bool(stored == written)


def test_no_overlay_is_forgotten_by_tests_or_linters() -> None:
    assert {path.name for path in (DEPLOY / "kubernetes/overlays").iterdir()} == set(OVERLAYS)
    assert f"for overlay in {' '.join(OVERLAYS)};" in (ROOT / "scripts/check-deploy").read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_objects_are_named_once(overlay: str) -> None:
    names = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in rendered(overlay)
    ]
    assert len(names) == len(set(names))


def test_two_versions_of_the_worker_run_side_by_side(tmp_path: Path) -> None:
    """The steps of docs/operations.md: copy the directory, and set what names the version in the copy."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    base = tmp_path / "deploy/kubernetes/base"
    shutil.copytree(base / "worker", base / "worker-0-2-0")
    version = base / "worker-0-2-0/kustomization.yaml"
    version.write_text(version.read_text().replace("-0-1-0", "-0-2-0").replace("0.1.0", "0.2.0"))
    both = base / "kustomization.yaml"
    both.write_text(both.read_text().replace("  - worker\n", "  - worker\n  - worker-0-2-0\n"))
    documents = list(yaml.safe_load_all(kubectl("kustomize", tmp_path / "deploy/kubernetes/overlays/istio")))
    maps = {one["metadata"]["name"]: one["data"] for one in documents if one["kind"] == "ConfigMap"}
    for suffix, build in (("0-1-0", "0.1.0"), ("0-2-0", "0.2.0")):
        (one,) = [one for one in documents if one["metadata"]["name"] == f"weightshift-worker-{suffix}"][:1]
        container = one["spec"]["template"]["spec"]["containers"][0]
        assert container["image"] == f"weightshift/control:{build}"
        assert one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/version"] == build
        builds = {
            maps[source["configMapRef"]["name"]].get("WEIGHTSHIFT_WORKER_BUILD_ID")
            for source in container["envFrom"]
        }
        assert builds == {build, None}
        assert any(
            volume["name"] == "cluster-access" for volume in one["spec"]["template"]["spec"]["volumes"]
        )


@pytest.mark.parametrize(
    ("component", "settings"),
    [
        ("notifications", NotifySettings),
        ("istiod-confirmation", MeshSettings),
        ("temporal-tls", TemporalSettings),
    ],
)
def test_an_optional_component_fits_and_sets_what_the_worker_knows(
    component: str, settings: type[BaseSettings], tmp_path: Path
) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    overlay = tmp_path / "deploy/kubernetes/overlays/istio"
    listed = overlay / "kustomization.yaml"
    listed.write_text(
        listed.read_text().replace("components:\n", f"components:\n  - ../../components/{component}\n")
    )
    documents = list(yaml.safe_load_all(kubectl("kustomize", overlay)))
    before = {one["metadata"]["name"] for one in rendered("istio")}
    assert {one["kind"] for one in documents if one["metadata"]["name"] not in before} <= {"NetworkPolicy"}
    for document in documents:
        if document["kind"] in {"Deployment", "Job", "NetworkPolicy"}:
            check(document)
    (plain, changed) = (
        next(one for one in some if one["metadata"]["name"] == "weightshift-worker-0-1-0")["spec"][
            "template"
        ]["spec"]
        for some in (rendered("istio"), documents)
    )
    known = {one["name"] for one in plain["containers"][0]["env"]}
    added = [one for one in changed["containers"][0]["env"] if one["name"] not in known]
    prefix = str(settings.model_config["env_prefix"])
    assert added
    for variable in added:
        assert variable["name"].removeprefix(prefix).lower() in settings.model_fields
    files = [one["value"] for one in added if one["name"].endswith("_FILE")]
    mounts = [one["mountPath"] for one in changed["containers"][0]["volumeMounts"]]
    assert all(str(Path(one).parent) in mounts for one in files)


def test_the_overlay_of_the_cluster_suite_is_valid_and_needs_no_gpu() -> None:
    documents = list(yaml.safe_load_all(kubectl("kustomize", ROOT / "tests/cluster/overlay")))
    for document in documents:
        if document["kind"] not in OPERATORS:
            check(document)
    assert "nvidia" not in str(documents)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_explained_findings_are_explained(overlay: str) -> None:
    for one in rendered(overlay):
        for name, value in one["metadata"].get("annotations", {}).items():
            if name.startswith("checkov.io/skip"):
                check, _, reason = value.partition("=")
                assert check.startswith("CKV_")
                assert len(reason.split()) >= 5


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_manifest_holds_a_secret(overlay: str) -> None:
    assert not objects(overlay, "Secret")


@pytest.mark.parametrize("container", all_containers(), ids=str)
def test_a_container_is_hardened(container: Container) -> None:
    security = container.spec["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    pod = container.pod["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] >= 10_000
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container.pod["automountServiceAccountToken"] is False
    assert {"cpu", "memory"} <= set(container.spec["resources"]["limits"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_namespaces_are_restricted_and_deny_by_default(overlay: str) -> None:
    denied = {
        one["metadata"]["namespace"]
        for one in objects(overlay, "NetworkPolicy")
        if one["spec"]["podSelector"] == {}
        and set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not one["spec"].get("ingress")
        and not one["spec"].get("egress")
    }
    namespaces = objects(overlay, "Namespace")
    assert denied == {one["metadata"]["name"] for one in namespaces}
    for one in namespaces:
        assert one["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_access_is_to_named_objects_only(overlay: str) -> None:
    assert not objects(overlay, "ClusterRole")
    for role in objects(overlay, "Role"):
        for rule in role["rules"]:
            assert rule["resourceNames"]
            assert set(rule["verbs"]) <= {"get", "patch"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_network_policies_select_pods_that_exist(overlay: str) -> None:
    labels = [
        (one["metadata"]["namespace"], one["spec"]["template"]["metadata"]["labels"])
        for one in objects(overlay, "Deployment") + objects(overlay, "Job")
    ]
    for policy in objects(overlay, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        wanted = selector.get("matchLabels", {})
        for value in [wanted.get("app.kubernetes.io/name"), *expressions(selector)]:
            if value is not None:
                assert any(
                    namespace == policy["metadata"]["namespace"] and own["app.kubernetes.io/name"] == value
                    for namespace, own in labels
                ), value


def expressions(selector: Manifest) -> list[str]:
    return [value for one in selector.get("matchExpressions", ()) for value in one["values"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("cohort", ["stable", "canary"])
def test_a_cohort_can_be_disturbed_without_harm(overlay: str, cohort: str) -> None:
    deployment = find(overlay, "Deployment", f"ranker-{cohort}")["spec"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert len(deployment["template"]["spec"]["topologySpreadConstraints"]) == 2
    budget = find(overlay, "PodDisruptionBudget", f"ranker-{cohort}")["spec"]
    own = deployment["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= own.items()
    assert deployment["selector"]["matchLabels"].items() <= own.items()


@pytest.mark.parametrize("overlay", ["istio", "gateway-api"])
@pytest.mark.parametrize("cohort", ["stable", "canary"])
def test_an_instance_asks_for_a_gpu_and_goes_where_there_is_one(overlay: str, cohort: str) -> None:
    pod = find(overlay, "Deployment", f"ranker-{cohort}")["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    autoscaler = find(overlay, "HorizontalPodAutoscaler", f"ranker-{cohort}")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == f"ranker-{cohort}"
    assert not [one for one in autoscaler["metrics"] if one["type"] == "Resource"]
