import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import PollerInfo

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import MeshUnreachable, MetricsUnreachable, TemporalUnreachable, Unauthorised
from weightshift.registry.answers import Identity
from weightshift.temporal_answers import count_living

Run = Callable[..., Any]
SERVICE = Service(model="ranker", environment="test")
CHECKS = ["temporal", "worker", "registry", "prometheus", "mesh agent", "object store"]


class FakePrometheus:
    def __init__(self) -> None:
        self.answer: int | Exception = 4

    async def scraped_instances(self) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def prometheus(connections: Any, registry: Any, monkeypatch: pytest.MonkeyPatch) -> FakePrometheus:
    """Everything answers, until a test says otherwise."""
    fake = FakePrometheus()
    (connections.directory / "store").mkdir()
    monkeypatch.setattr(connections, "prometheus", lambda arguments: fake, raising=True)
    registry.answers["identity"] = Identity(subject="ada", role="operator", model="*", environment="*")
    return fake


def findings(result: Any) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(result.out)["checks"]}


def test_all_is_well_in_one_line_each(run: Run, prometheus: FakePrometheus, mesh: Any) -> None:
    result = run("doctor")
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line[8:20].rstrip() for line in lines[1:]] == CHECKS
    assert all(line.startswith("ok ") and "next:" not in line for line in lines[1:])
    assert mesh.closed


def test_each_failure_is_named_with_its_next_step_and_the_others_answer(
    run: Run, prometheus: FakePrometheus, releases: Any
) -> None:
    releases.failure = TemporalUnreachable("Temporal does not answer")
    prometheus.answer = MetricsUnreachable("Prometheus did not answer")
    result = run("doctor", "--json")
    found = findings(result)
    assert result.code == 5
    assert not json.loads(result.out)["ok"]
    assert [name for name in CHECKS if not found[name]["ok"]] == ["temporal", "worker", "prometheus"]
    assert "next: start it, or set WEIGHTSHIFT_METRICS_PROMETHEUS_URL" in found["prometheus"]["detail"]
    assert "WEIGHTSHIFT_TEMPORAL_ADDRESS" in found["temporal"]["detail"]


def test_nobody_to_do_the_work_is_a_failure(run: Run, prometheus: FakePrometheus, releases: Any) -> None:
    releases.polling = 0
    result = run("doctor", "--json")
    assert result.code == 5
    assert "python -m worker" in findings(result)["worker"]["detail"]


def test_a_refused_token_is_bad_input(run: Run, prometheus: FakePrometheus, registry: Any) -> None:
    registry.answers["identity"] = Unauthorised("the token is revoked")
    result = run("doctor", "--json")
    assert result.code == 2
    told = findings(result)["registry"]["detail"]
    assert told == "the token is revoked; next: set WEIGHTSHIFT_REGISTRY_TOKEN to a valid token"


async def _carry_traffic(mesh: Any) -> None:
    await mesh.write(SERVICE, TrafficSplit.with_canary(25), Fence(epoch=1, sequence=1))


def test_with_a_model_its_split_is_read(run: Run, prometheus: FakePrometheus, mesh: Any) -> None:
    asyncio.run(_carry_traffic(mesh))
    found = findings(run("doctor", "--model", "ranker", "-e", "test", "--json"))
    assert found["mesh agent"]["detail"] == "traffic stable/canary 75/25"


def test_a_model_without_environment_is_refused(run: Run, prometheus: FakePrometheus) -> None:
    result = run("doctor", "--model", "ranker")
    assert result.code == 2
    assert "--model and --environment go together" in result.err
    assert "next:" not in result.err


def test_a_mesh_that_there_is_not_is_named_by_its_variable_and_the_others_answer(
    run: Run, prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHTSHIFT_MESH_ADAPTER", "linkerd")
    result = run("doctor", "--json")
    found = findings(result)
    assert result.code == 2
    assert found["mesh"]["detail"] == "WEIGHTSHIFT_MESH_ADAPTER: must be 'envoy', 'istio' or 'gateway'"
    assert [name for name, check in found.items() if not check["ok"]] == ["mesh"]


def test_who_has_no_stack_is_told_how_to_get_one(
    run: Run, prometheus: FakePrometheus, releases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "weightshift local up" not in run("doctor").out
    releases.failure = TemporalUnreachable("Temporal does not answer")
    assert "weightshift local up" in run("doctor").out
    monkeypatch.setenv("WEIGHTSHIFT_REGISTRY_URL", "http://registry:8070")
    assert "weightshift local up" not in run("doctor").out


def test_a_mesh_that_is_away_is_closed_all_the_same(
    run: Run, prometheus: FakePrometheus, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(service: Service) -> None:
        raise MeshUnreachable("the mesh agent does not answer")

    monkeypatch.setattr(mesh, "read", away)
    assert run("doctor", "--json").code == 5
    assert mesh.closed


def test_a_store_that_is_not_there_is_unreachable(
    run: Run, prometheus: FakePrometheus, connections: Any
) -> None:
    (connections.directory / "store").rmdir()
    result = run("doctor", "--json")
    assert (result.code, findings(result)["object store"]["ok"]) == (5, False)


def test_no_password_is_shown(run: Run, prometheus: FakePrometheus) -> None:
    prometheus.answer = ValueError("http://ada:hidden@prometheus is odd")
    result = run("doctor", "--prometheus-url", "http://ada:hidden@prometheus:9090", "--json")
    found = findings(result)["prometheus"]
    assert "hidden" not in result.out
    assert (found["address"], found["ok"], result.code) == ("http://prometheus:9090", False, 2)


def test_a_worker_that_has_not_asked_for_long_is_gone() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def poller(identity: str, seconds_ago: int) -> PollerInfo:
        found = PollerInfo(identity=identity)
        found.last_access_time.FromDatetime(now - timedelta(seconds=seconds_ago))
        return found

    assert count_living([poller("a", 61), poller("a", 3), poller("b", 300)], now) == 1
    assert count_living([poller("b", 300)], now) == 0
