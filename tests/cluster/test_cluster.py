"""A release, a rollback and disturbances on a real cluster with Istio; each test goes on from the last."""

import json
import subprocess
import threading
from typing import Any

import pytest

from tests.cluster.conftest import BESIDE, Cluster, kubectl

WORKER = "system:serviceaccount:weightshift:weightshift-worker"
AT_ONCE = {"stages": [50, 100], "window": "0s", "max_window": "0s", "retain": "0s"}
WATCHED = {
    "stages": [25, 50, 100],
    "window": "20s",
    "max_window": "5m",
    "interval": "5s",
    "min_samples": 50,
    "gates": [{"metric": "error_rate", "maximum": 0.03}],
    "retain": "10m",
}


def route() -> dict[str, Any]:
    """The VirtualService as it is stored."""
    found: dict[str, Any] = json.loads(
        kubectl("-n", "weightshift-serving", "get", "virtualservice", "ranker", "-o", "json")
    )
    return found


def weights() -> tuple[int, ...]:
    (rule,) = [one for one in route()["spec"]["http"] if one["name"] == "weightshift"]
    return tuple(one.get("weight", 0) for one in rule["route"])


def refusal(*arguments: str, standard_input: str | None = None) -> str:
    """What the API server says to a request that it has to refuse."""
    done = subprocess.run(
        [str(BESIDE / "kubectl"), *arguments],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_the_control_plane_is_up(cluster: Cluster) -> None:
    for name in ("registry", "worker"):
        selector = f"app.kubernetes.io/name=weightshift-{name}"
        wait = ("wait", "--for=condition=Available", "deployment", "-l", selector, "--timeout=120s")
        kubectl("-n", "weightshift", *wait)


@pytest.mark.parametrize(
    ("verb", "what", "allowed"),
    [
        ("get", "virtualservices.networking.istio.io/ranker", "yes"),
        ("patch", "virtualservices.networking.istio.io/ranker", "yes"),
        ("patch", "virtualservices.networking.istio.io/other", "no"),
        ("delete", "virtualservices.networking.istio.io/ranker", "no"),
        ("list", "secrets", "no"),
        ("create", "pods", "no"),
    ],
)
def test_the_worker_may_do_what_it_needs_and_no_more(
    cluster: Cluster, verb: str, what: str, allowed: str
) -> None:
    ask = ("auth", "can-i", verb, what, f"--as={WORKER}")
    assert kubectl("-n", "weightshift-serving", *ask, check=False).strip() == allowed


def test_an_image_without_a_version_is_refused(cluster: Cluster) -> None:
    # Within the `restricted` standard, which would refuse it first.
    container = {
        "name": "unpinned",
        "image": "busybox",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    metadata = {"name": "unpinned", "namespace": "weightshift-serving"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    said = refusal("create", "--dry-run=server", "-f", "-", standard_input=json.dumps(pod))
    assert "name a digest or a version" in said


def test_the_first_release_serves(cluster: Cluster) -> None:
    cluster.release("v41", AT_ONCE)
    with cluster.requests(seconds=10) as figures:
        pass
    assert figures["failed"] == []
    assert set(figures["artifacts"]) == {"v41"}


def test_a_release_moves_traffic_without_a_failure_and_back(cluster: Cluster) -> None:
    with cluster.requests(seconds=240) as figures:
        released = cluster.release("v42", WATCHED)
        assert released["outcome"] == "promoted"
        cluster.weightshift("release", "rollback", "ranker", "-e", "production", "--reason", "for the test")
        assert weights() in {(0, 100), (100, 0)}
    assert figures["failed"] == []
    assert set(figures["artifacts"]) == {"v41", "v42"}


def test_nobody_else_moves_traffic(cluster: Cluster) -> None:
    patch = [{"op": "replace", "path": "/spec/http/0/route/0/weight", "value": 1}]
    said = refusal(
        *("-n", "weightshift-serving", "patch", "virtualservice", "ranker"),
        *("--type=json", f"--patch={json.dumps(patch)}"),
    )
    assert "weightshift release" in said


def test_the_worker_cannot_send_requests_elsewhere(cluster: Cluster) -> None:
    patch = [{"op": "replace", "path": "/spec/http/0/route/0/destination/host", "value": "elsewhere"}]
    said = refusal(
        *("-n", "weightshift-serving", "patch", "virtualservice", "ranker", f"--as={WORKER}"),
        *("--type=json", f"--patch={json.dumps(patch)}"),
    )
    assert "not destinations" in said


@pytest.mark.parametrize("cohort", ["stable", "canary"])
def test_instances_are_replaced_without_a_failure(cluster: Cluster, cohort: str) -> None:
    deployment = f"deployment/ranker-{cohort}"
    with cluster.requests(seconds=180) as figures:
        kubectl("-n", "weightshift-serving", "rollout", "restart", deployment)
        kubectl("-n", "weightshift-serving", "rollout", "status", deployment, "--timeout=170s")
    assert figures["failed"] == []


def test_a_lost_canary_rolls_back(cluster: Cluster) -> None:
    slow = {**WATCHED, "stages": [25, 100], "window": "3m"}
    outcome: list[Any] = []
    releasing = threading.Thread(target=lambda: outcome.append(cluster.release("v42", slow, code=3)))
    with cluster.requests(seconds=200) as figures:
        releasing.start()
        in_stage = "jsonpath={.spec.http[0].route[1].weight}=25"
        wait = ("wait", f"--for={in_stage}", "virtualservice/ranker", "--timeout=120s")
        kubectl("-n", "weightshift-serving", *wait)
        selector = "weightshift.dev/cohort=canary"
        kubectl("-n", "weightshift-serving", "delete", "pod", "-l", selector, "--grace-period=0", "--force")
        releasing.join(timeout=170)
    assert outcome[0]["outcome"] == "rolled-back"
    assert weights() == (100, 0)
    # Requests that were inside a pod when it was destroyed may be lost; nothing else.
    assert len(figures["failed"]) < 10
