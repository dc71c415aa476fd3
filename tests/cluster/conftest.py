"""A real cluster that was made for this suite; everything is skipped, with the reason, without one.

Beside the cluster the suite needs where artifacts are stored and the key they are signed with:
CLUSTER_STORE_URL, CLUSTER_STORE_ENDPOINT (for stores other than S3) and CLUSTER_SIGNING_KEY_FILE, and AWS
credentials that may write there.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from weightshift.local.demo_models import RECIPES, build_models
from weightshift.local.ports import HOST, free_ports

CONTEXTS = ("kind-weightshift", "k3d-weightshift")
NEEDED = ("CLUSTER_STORE_URL", "CLUSTER_SIGNING_KEY_FILE")
URL = "http://ranker.weightshift-serving.svc.cluster.local:8080/predict"
BESIDE = Path(sys.executable).parent
SCRIPT = Path(__file__).parent / "traffic.py"
CLIENT = "traffic"


def reason_to_skip() -> str | None:
    """Return why there is nothing to test, or None."""
    if missing := [name for name in NEEDED if name not in os.environ]:
        return f"no cluster to test: {', '.join(missing)} not set, see docs/kubernetes.md"
    context = kubectl("config", "current-context", check=False).strip()
    if context not in CONTEXTS:
        return f"kubectl's context is {context or 'not set'}; the suite changes only {' or '.join(CONTEXTS)}"
    return None


def kubectl(
    *arguments: str, check: bool = True, standard_input: str | None = None, timeout: float = 300
) -> str:
    """Run kubectl and return its output."""
    done = subprocess.run(
        [str(BESIDE / "kubectl"), *arguments],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def forwarded(namespace: str, service: str, port: int) -> Iterator[str]:
    """Forward a free local port to a service; yields `host:port`."""
    (local,) = free_ports(1)
    command = [
        str(BESIDE / "kubectl"),
        "-n",
        namespace,
        "port-forward",
        f"service/{service}",
        f"{local}:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # It says where it listens, once it does.
        assert process.stdout.readline().startswith("Forwarding")
        try:
            yield f"{HOST}:{local}"
        finally:
            process.terminate()


class Cluster:
    """The command line against the cluster, and checked requests inside it."""

    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self._environment = environment
        self.directory = directory

    def weightshift(self, *arguments: str, code: int = 0, **changed: str) -> Any:
        """Run a command with `--json`; it has to end with `code`."""
        done = subprocess.run(
            [str(BESIDE / "weightshift"), *arguments, "--json"],
            env={**os.environ, **self._environment, **changed},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def release(self, artifact_id: str, plan: dict[str, Any], code: int = 0) -> Any:
        """Release an artifact and wait for the outcome."""
        path = self.directory / f"plan-{artifact_id}-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(plan))
        names = ("ranker", artifact_id, "-e", "production", "--plan", str(path), "--wait")
        return self.weightshift("release", "start", *names, code=code)

    @contextmanager
    def requests(self, seconds: int, rate: int = 20) -> Iterator[dict[str, Any]]:
        """Send checked requests beside the `with` block; the figures are complete after it."""
        command = ["-n", "weightshift-clients", "exec", "-i", CLIENT, "-c", CLIENT, "--", "python", "-"]
        process = subprocess.Popen(
            [str(BESIDE / "kubectl"), *command, URL, "/tmp/expectations.json", str(seconds), str(rate)],  # noqa: S108 - in the pod
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(SCRIPT.read_text())
        process.stdin.close()
        process.stdin = None
        figures: dict[str, Any] = {}
        try:
            yield figures
            output, _ = process.communicate(timeout=seconds + 60)
            figures.update(json.loads(output.strip().splitlines()[-1]))
        finally:
            process.kill()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with v41 and v42 stored and approved, and a client in the mesh."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("cluster")
    build_models(directory / "models", RECIPES[:2])
    with ExitStack() as stack:
        registry = stack.enter_context(forwarded("weightshift", "weightshift-registry", 8070))
        temporal = stack.enter_context(forwarded("temporal", "temporal-frontend", 7233))
        environment = {
            "WEIGHTSHIFT_REGISTRY_URL": f"http://{registry}",
            "WEIGHTSHIFT_TEMPORAL_ADDRESS": temporal,
            "WEIGHTSHIFT_TEMPORAL_NAMESPACE": "weightshift",
            "WEIGHTSHIFT_STORE_URL": os.environ["CLUSTER_STORE_URL"],
            "WEIGHTSHIFT_STORE_ENDPOINT": os.environ.get("CLUSTER_STORE_ENDPOINT", ""),
            "WEIGHTSHIFT_SIGNING_KEY_FILE": os.environ["CLUSTER_SIGNING_KEY_FILE"],
            "WEIGHTSHIFT_REGISTRY_TOKEN": operator_token("ada"),
        }
        assert httpx.get(f"http://{registry}/healthz").status_code == 200
        found = Cluster({name: value for name, value in environment.items() if value}, directory)
        store_models(found)
        start_client(directory / "models/expectations.json")
        yield found
        kubectl("-n", "weightshift-clients", "delete", "pod", CLIENT, "--wait=false")


def operator_token(subject: str) -> str:
    """Issue a token in the registry's pod."""
    issue = ("weightshift", "token", "issue", "--role", "operator", "--subject", subject)
    return kubectl("-n", "weightshift", "exec", "deployment/weightshift-registry", "--", *issue).strip()


def store_models(cluster: Cluster) -> None:
    """Push both models, and have somebody else approve them."""
    approver = operator_token("grace")
    for artifact_id in ("v41", "v42"):
        names = ("--model", "ranker", "--id", artifact_id, "--feature-schema", "ranker-v1")
        path = str(cluster.directory / "models" / artifact_id)
        cluster.weightshift("artifact", "push", path, *names, "--architecture", "ranker")
        cluster.weightshift("artifact", "approve", "ranker", artifact_id, WEIGHTSHIFT_REGISTRY_TOKEN=approver)


def start_client(expectations: Path) -> None:
    """Start the pod that requests come from."""
    image = kubectl(
        *("-n", "weightshift", "get", "deployment", "-l", "app.kubernetes.io/name=weightshift-worker"),
        *("-o", "jsonpath={.items[0].spec.template.spec.containers[0].image}"),
    )
    kubectl("-n", "weightshift-clients", "delete", "pod", CLIENT, "--ignore-not-found")
    arguments = ("run", CLIENT, "--image", image, "--image-pull-policy=IfNotPresent", "--restart=Never")
    kubectl("-n", "weightshift-clients", *arguments, "--", "sleep", "7200")
    kubectl("-n", "weightshift-clients", "wait", "--for=condition=Ready", f"pod/{CLIENT}", "--timeout=180s")
    write = ("exec", "-i", CLIENT, "-c", CLIENT, "--", "sh", "-c", "cat > /tmp/expectations.json")
    kubectl("-n", "weightshift-clients", *write, standard_input=expectations.read_text())
