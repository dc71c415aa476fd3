"""The manifests as they reach a cluster, and the parts of them that tests look at."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("istio", "gateway-api", "single-node")

Manifest = dict[str, Any]
_WORKLOADS = {"Deployment", "Job"}


def kubectl(*arguments: str | Path) -> str:
    """Run kubectl; fails with its words when it does."""
    command = [str(Path(sys.executable).parent / "kubectl"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def rendered(overlay: str) -> tuple[Manifest, ...]:
    """Return every object of an overlay, as `kubectl apply -k` would send it."""
    return tuple(yaml.safe_load_all(kubectl("kustomize", DEPLOY / "kubernetes/overlays" / overlay)))


def objects(overlay: str, kind: str) -> list[Manifest]:
    """Return the objects of one kind."""
    return [one for one in rendered(overlay) if one["kind"] == kind]


def find(overlay: str, kind: str, name: str) -> Manifest:
    """Return the one object of this kind and name."""
    (found,) = [one for one in objects(overlay, kind) if one["metadata"]["name"] == name]
    return found


@dataclass(frozen=True)
class Container:
    """One container of a workload, with the pod it is in."""

    overlay: str
    workload: Manifest
    pod: Manifest
    spec: Manifest

    def __str__(self) -> str:
        return f"{self.overlay}/{self.workload['metadata']['name']}/{self.spec['name']}"

    @property
    def command(self) -> str:
        """What runs."""
        return " ".join([*self.spec.get("command", ()), *self.spec.get("args", ())])

    def environment(self) -> dict[str, str]:
        """Return the variables it gets; those that the cluster fills in have the value `ref`."""
        found: dict[str, str] = {}
        for source in self.spec.get("envFrom", ()):
            name = source["configMapRef"]["name"]
            found |= find(self.overlay, "ConfigMap", name)["data"]
        for variable in self.spec.get("env", ()):
            found[variable["name"]] = variable.get("value", "ref")
        return found


def containers(overlay: str) -> Iterator[Container]:
    """Return every container of every workload."""
    for workload in rendered(overlay):
        if workload["kind"] in _WORKLOADS:
            pod = workload["spec"]["template"]["spec"]
            for spec in (*pod.get("initContainers", ()), *pod["containers"]):
                yield Container(overlay, workload, pod, spec)


def all_containers() -> list[Container]:
    """Return the containers of every overlay."""
    return [one for overlay in OVERLAYS for one in containers(overlay)]
