"""Objects as people keep them in a cluster, and adapters that may touch what they have to and no more."""

import json
from pathlib import Path
from typing import Any

from tests.kubernetes_api.server import KubernetesApi
from weightshift.cluster.client import KubernetesClient
from weightshift.mesh.gateway import GatewayMesh
from weightshift.mesh.istio import IstioMesh
from weightshift.mesh.istiod import Istiod
from weightshift.settings import KubernetesSettings, MeshSettings

HOST = "ranker.weightshift.svc.cluster.local"


def virtual_service(*destinations: dict[str, Any], **rule: Any) -> dict[str, Any]:
    """Build a VirtualService with one owned rule, and others before and after it."""
    backends = destinations or (destination("stable", 100), destination("canary", 0))
    owned = {
        "name": "predictions",
        "match": [{"uri": {"prefix": "/"}}],
        "retries": {"attempts": 2, "perTryTimeout": "2s"},
        "timeout": "15s",
        "headers": {"response": {"set": {"x-served-by": "mesh"}}},
        "route": list(backends),
    }
    admin = {"name": "admin", "match": [{"uri": {"prefix": "/admin"}}], "route": [destination("admin", 100)]}
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "ranker", "annotations": {"owner": "team-ranking"}},
        "spec": {
            "hosts": [HOST],
            "http": [admin, {**owned, **rule}, {"name": "rest", "route": [destination("rest", 100)]}],
        },
    }


def destination(subset: str, weight: int, **fields: Any) -> dict[str, Any]:
    """Build one weighted destination."""
    return {"destination": {"host": HOST, "subset": subset}, "weight": weight, **fields}


def destination_rule(*subsets: str) -> dict[str, Any]:
    """Build a DestinationRule with these subsets."""
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {"name": "ranker"},
        "spec": {
            "host": HOST,
            "subsets": [{"name": name, "labels": {"weightshift.dev/cohort": name}} for name in subsets],
        },
    }


def http_route(*backends: dict[str, Any], **rule: Any) -> dict[str, Any]:
    """Build an HTTPRoute with one owned rule, and another before it."""
    owned = {
        "name": "predictions",
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "timeouts": {"request": "15s"},
        "backendRefs": list(backends or (backend("ranker-stable", 100), backend("ranker-canary", 0))),
    }
    admin = {
        "name": "admin",
        "matches": [{"path": {"type": "PathPrefix", "value": "/admin"}}],
        "backendRefs": [backend("admin", 1)],
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "ranker"},
        "spec": {"parentRefs": [{"name": "public"}], "rules": [admin, {**owned, **rule}]},
    }


def backend(name: str, weight: int | None, **fields: Any) -> dict[str, Any]:
    """Build one weighted backend; without a weight the API server fills it in."""
    weighted = {} if weight is None else {"weight": weight}
    return {"name": name, "port": 8080, **weighted, **fields}


def accept(plural: str, stored: dict[str, Any]) -> None:
    """Take a route up the way a gateway's controller does."""
    if plural == "httproutes":
        seen = {"status": "True", "observedGeneration": stored["metadata"]["generation"]}
        conditions = [{"type": kind, "reason": kind, **seen} for kind in ("Accepted", "ResolvedRefs")]
        parent = {"parentRef": {"name": "public"}, "controllerName": "example.com/gateway"}
        stored["status"] = {"parents": [{**parent, "conditions": conditions}]}


def kubernetes_settings(api: KubernetesApi, directory: Path, *, timeout: float = 2.0) -> KubernetesSettings:
    """Write a kubeconfig for the API server, with the token of the account that the adapters have."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": api.url}}],
        "users": [{"name": "worker", "user": {"token": api.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "worker"}}],
        "current-context": "test",
    }
    path = directory / "kubeconfig.json"
    path.write_text(json.dumps(document))
    return KubernetesSettings(kubeconfig=path, timeout=timeout)


def istio_mesh(
    api: KubernetesApi, directory: Path, *, timeout: float = 4.0, istiod: Istiod | None = None, **named: Any
) -> IstioMesh:
    """Build the adapter for the VirtualService `ranker`, with the rights that it needs."""
    api.allow("get patch", "virtualservices", "ranker")
    settings = MeshSettings(
        **{"adapter": "istio", "route": "predictions", "timeout": timeout, "confirm_timeout": 4.0, **named}
    )
    client = KubernetesClient(settings=kubernetes_settings(api, directory, timeout=timeout))
    return IstioMesh(client=client, settings=settings, istiod=istiod)


def gateway_mesh(api: KubernetesApi, directory: Path, *, timeout: float = 4.0, **named: Any) -> GatewayMesh:
    """Build the adapter for the HTTPRoute `ranker`, with the rights that it needs."""
    api.allow("get patch", "httproutes", "ranker")
    names = {"route": "predictions", "stable": "$model-stable", "canary": "$model-canary"}
    settings = MeshSettings(
        **{"adapter": "gateway", "timeout": timeout, "confirm_timeout": 4.0, **names, **named}
    )
    client = KubernetesClient(settings=kubernetes_settings(api, directory, timeout=timeout))
    return GatewayMesh(client=client, settings=settings)
