"""What the manifests refer to by name is in them, or is what people are told to make."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.manifests import OVERLAYS, objects, rendered

MADE_BY_PEOPLE = {
    ("Secret", "weightshift", "weightshift-database"),
    ("Secret", "weightshift", "weightshift-database-owner"),
    ("Secret", "weightshift", "weightshift-release-key"),
    ("Secret", "weightshift", "weightshift-mesh-agent"),
    ("Secret", "weightshift", "weightshift-metrics"),
    ("Secret", "weightshift-serving", "ranker-runtime"),
    ("Secret", "weightshift-serving", "ranker-metrics"),
    ("Secret", "weightshift-serving", "ranker-mesh-agent"),
    ("Secret", "weightshift-serving", "weightshift-store-read"),
    ("ConfigMap", "weightshift-serving", "weightshift-accepted-keys"),
}
"""What docs/kubernetes.md has people make; no manifest holds a secret."""


def references(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Return what a pod refers to by name: secrets, maps and claims."""
    kinds = {
        "secretKeyRef": "Secret",
        "secretRef": "Secret",
        "configMapRef": "ConfigMap",
        "configMap": "ConfigMap",
    }
    if isinstance(value, dict):
        if key in kinds and "name" in value:
            yield kinds[key], value["name"]
        if key == "secret" and "secretName" in value:
            yield "Secret", value["secretName"]
        if key == "persistentVolumeClaim":
            yield "PersistentVolumeClaim", value["claimName"]
        for name, one in value.items():
            yield from references(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from references(one, key)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_references_lead_somewhere(overlay: str) -> None:
    present = {
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in rendered(overlay)
    } | MADE_BY_PEOPLE
    for workload in objects(overlay, "Deployment") + objects(overlay, "Job"):
        namespace = workload["metadata"]["namespace"]
        pod = workload["spec"]["template"]["spec"]
        assert ("ServiceAccount", namespace, pod["serviceAccountName"]) in present
        for kind, name in references(pod):
            assert name == "kube-root-ca.crt" or (kind, namespace, name) in present, (kind, name)
