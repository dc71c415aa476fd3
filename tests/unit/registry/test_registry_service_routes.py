"""The newer routes: metrics, the description, audit pages, grants, approvals, and audited refusals."""

from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route

from weightshift.contracts.approval import ApprovalRequest
from weightshift.contracts.evidence import AuditQuery, Evidence
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import Publication
from weightshift.contracts.wave import WaveRequest
from weightshift.errors import RevisionConflict, Unauthorised, UnknownApproval
from weightshift.registry.chain import REFUSAL_ENVIRONMENT
from weightshift.registry.client import RegistryClient
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.refusals import ROWS_PER_MINUTE, RefusalRecorder
from weightshift.registry.tokens import EVERY, Grant, MemoryTokens, Role

RECORD = ArtifactRecord(
    model="ranker",
    artifact_id="v41",
    manifest_uri="file:///v41",
    manifest_sha256="a" * 64,
    feature_schema="features-1",
)
Issue = Callable[..., dict[str, str]]


@pytest.fixture
def issue(tokens: MemoryTokens) -> Issue:
    """Issues a token and returns the header that carries it."""

    def issue_one(role: Role, *, model: str = EVERY, environment: str = EVERY) -> dict[str, str]:
        token = tokens.issue(Grant(role=role, subject="grace", model=model, environment=environment))
        return {"authorization": f"Bearer {token}"}

    return issue_one


async def conflict(registry: MemoryRegistry, service: Service) -> None:
    await registry.register_artifact(RECORD, operator="ada")
    await registry.approve_artifact("ranker", "v41", operator="bob")
    publication = Publication(
        service=service,
        cohort=Cohort.CANARY,
        artifact_id="v41",
        expected_revision=7,
        fence=Fence(epoch=0, sequence=1),
        operation_id="R1/1",
        release_id="R1",
        operator="ada",
    )
    with pytest.raises(RevisionConflict):
        await registry.publish(publication)


async def test_prometheus_reads_incidents_and_the_fleet(
    http: httpx.AsyncClient, registry: MemoryRegistry, issue: Issue, service: Service
) -> None:
    await conflict(registry, service)
    report = InstanceReport(instance_id="gpu-0", boot_id="1", service=service, cohort=Cohort.CANARY)
    await registry.report(report)
    response = await http.get("/metrics", headers=issue(Role.METRICS))
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name.removeprefix("weightshift_registry_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    assert samples == {
        ("publish_conflicts_total", "ranker", "test"): 1,
        ("stale_fences_total", "ranker", "test"): 0,
        ("revision_reuses_total", "ranker", "test"): 0,
        ("rejected_in_use_total", "ranker", "test"): 0,
        ("instances", "canary", "ranker", "test"): 1,
        ("lost_instances", "canary", "ranker", "test"): 0,
        ("mismatched_instances", "canary", "ranker", "test"): 0,
        ("waiting_clients",): 0,
    }


async def test_metrics_are_for_those_who_may_see_every_service(
    http: httpx.AsyncClient, issue: Issue, runtime_token: str
) -> None:
    assert (await http.get("/metrics", headers=issue(Role.OPERATOR))).status_code == 200
    for headers in (
        issue(Role.OPERATOR, model="ranker"),
        issue(Role.OPERATOR, environment="test"),
        {"authorization": f"Bearer {runtime_token}"},
    ):
        assert (await http.get("/metrics", headers=headers)).status_code == 403


async def test_a_metrics_token_reads_metrics_only(http: httpx.AsyncClient, issue: Issue) -> None:
    headers = issue(Role.METRICS)
    description = (await http.get("/openapi.json", headers=headers)).json()
    for path, operations in description["paths"].items():
        if path in ("/metrics", "/openapi.json"):
            continue
        for method in operations:
            named = path.replace("{model}", "ranker").replace("{environment}", "test")
            named = named.replace("{cohort}", "stable").replace("{", "").replace("}", "")
            response = await http.request(method, named, headers=headers)
            assert (path, method, response.status_code) == (path, method, 403)


async def test_the_description_covers_every_route_and_needs_a_token(
    http: httpx.AsyncClient, transport: httpx.ASGITransport, issue: Issue
) -> None:
    assert (await http.get("/openapi.json")).status_code == 401
    description = (await http.get("/openapi.json", headers=issue(Role.OPERATOR))).json()
    described = {(method, path) for path, methods in description["paths"].items() for method in methods}
    assert isinstance(transport.app, Starlette)
    served = {
        (method.lower(), route.path)
        for route in transport.app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    assert described == {route for route in served if route[0] != "head"} - {("get", "/healthz")}
    put = description["paths"]["/v1/instances/{instance_id}"]["put"]
    reference = put["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/InstanceReport"
    audit = description["paths"]["/v1/audit/{environment}/{model}"]["get"]
    assert {"environment", "model", "since", "until", "operator", "release", "after", "limit"} == {
        parameter["name"] for parameter in audit["parameters"]
    }


async def test_every_reference_of_the_description_leads_somewhere(
    http: httpx.AsyncClient, issue: Issue
) -> None:
    response = await http.get("/openapi.json", headers=issue(Role.OPERATOR))
    schemas = response.json()["components"]["schemas"]
    references = {part.split('"')[0] for part in response.text.split('"#/components/schemas/')[1:]}
    assert references
    assert references <= set(schemas)


async def test_audit_pages_are_read_over_http(
    operator: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    neighbour = service.model_copy(update={"model": "other"})
    for number, owner in enumerate((service, neighbour, service)):
        evidence = Evidence(
            service=owner, release_id=f"R{number}", operation_id=f"R{number}", step="s", summary="x"
        )
        await registry.record_evidence(evidence)
    whole = AuditQuery(environment="test", limit=2)
    assert [row.sequence for row in await operator.audit_page(whole)] == [1, 2]
    rest = await operator.audit_page(whole.model_copy(update={"after": 2}))
    assert [row.sequence for row in rest] == [3]
    since = AuditQuery(environment="test", model="ranker", since=rest[0].recorded_at)
    assert await operator.audit_page(since) == rest
    assert await operator.audit_head("test") == await registry.audit_head("test")
    assert len(await operator.audit(service)) == 2


async def test_a_whole_chain_is_for_those_who_may_see_every_model(
    http: httpx.AsyncClient, issue: Issue
) -> None:
    for path in ("/v1/chains/test", "/v1/chains/test/head"):
        assert (await http.get(path, headers=issue(Role.OPERATOR, environment="test"))).status_code == 200
        assert (await http.get(path, headers=issue(Role.OPERATOR, model="ranker"))).status_code == 403
        assert (await http.get(path, headers=issue(Role.OPERATOR, environment="dev"))).status_code == 403


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "after=-1", "since=2026-01-02T00:00:00", "typo=1"]
)
async def test_a_filter_that_cannot_be_met_is_refused(
    http: httpx.AsyncClient, issue: Issue, query: str
) -> None:
    response = await http.get(f"/v1/audit/test/ranker?{query}", headers=issue(Role.OPERATOR))
    assert response.status_code == 400


async def test_a_runtime_reads_its_wave_grants(
    runtime: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    assert await runtime.wave_grants(service) == ()
    granted = await registry.grant_wave(
        WaveRequest(
            service=service,
            revision=2,
            instance_ids=("gpu-0",),
            lifetime=timedelta(minutes=1),
            fence=Fence(epoch=1, sequence=1),
            operation_id="R1/1",
            release_id="R1",
            operator="ada",
        )
    )
    assert await runtime.wave_grants(service) == (granted,)
    with pytest.raises(Unauthorised):
        await runtime.wave_grants(service.model_copy(update={"model": "other"}))


async def test_an_operator_approves_a_release_under_the_tokens_name(
    operator: RegistryClient, runtime: RegistryClient, service: Service
) -> None:
    request = ApprovalRequest(
        service=service, release_id="R1", artifact_id="v41", operation_id="approve-1", reason="fine"
    )
    approval = await operator.approve_release(request)
    assert (approval.operator, approval.release_id) == ("ada", "R1")
    assert await operator.approve_release(request) == approval
    assert await operator.approval(service, approval.approval_id) == approval
    with pytest.raises(UnknownApproval):
        await operator.approval(service.model_copy(update={"model": "other"}), approval.approval_id)
    with pytest.raises(Unauthorised):
        await runtime.approve_release(request)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/artifacts/..%5c..%5cetc"),
        ("GET", "/v1/artifacts/%2e%2e"),
        ("GET", "/v1/artifacts/%2fetc%2fpasswd"),
        ("GET", "/v1/artifacts/..%2f..%2fetc/passwd/x/y"),
        ("GET", "/v1/artifacts/a%00b"),
        ("POST", "/v1/artifacts"),
        ("PUT", "/v1/instances/gpu-0"),
        ("DELETE", "/v1/artifacts/ranker"),
    ],
)
async def test_a_wrong_request_of_somebody_known_is_audited(
    http: httpx.AsyncClient, registry: MemoryRegistry, operator_token: str, method: str, path: str
) -> None:
    response = await http.request(method, path, headers={"authorization": f"Bearer {operator_token}"})
    assert response.status_code in (400, 403, 404)
    (row,) = await registry.audit_page(AuditQuery(environment=REFUSAL_ENVIRONMENT))
    assert (row.operator, row.data["method"]) == ("ada", method)
    assert row.data["path"].isascii()
    assert row.data["path"].isprintable()


async def test_a_request_of_nobody_and_one_for_nothing_are_not_audited(
    http: httpx.AsyncClient, registry: MemoryRegistry, operator_token: str
) -> None:
    await http.get("/v1/artifacts/%2e%2e")
    headers = {"authorization": f"Bearer {operator_token}"}
    assert (await http.get("/v1/artifacts/ranker/v41", headers=headers)).status_code == 404
    assert await registry.audit_page(AuditQuery(environment=REFUSAL_ENVIRONMENT)) == ()


async def test_a_flood_of_wrong_requests_fills_no_chain(
    http: httpx.AsyncClient, registry: MemoryRegistry, operator_token: str
) -> None:
    headers = {"authorization": f"Bearer {operator_token}"}
    for _ in range(ROWS_PER_MINUTE + 5):
        assert (await http.get("/v1/artifacts/%2e%2e", headers=headers)).status_code == 400
    rows = await registry.audit_page(AuditQuery(environment=REFUSAL_ENVIRONMENT))
    # The clock may have gone on to the next minute meanwhile.
    assert ROWS_PER_MINUTE <= len(rows) <= 2 * ROWS_PER_MINUTE


async def test_refusals_are_counted_by_holder_and_minute(registry: MemoryRegistry) -> None:
    now = 0.0
    recorder = RefusalRecorder(registry=registry, clock=lambda: now)

    async def refuse(subject: str) -> None:
        grant = Grant(role=Role.OPERATOR, subject=subject, model=EVERY, environment=EVERY)
        await recorder.record(grant, method="GET", path="/", error=Unauthorised())

    for _ in range(ROWS_PER_MINUTE + 1):
        await refuse("eve")
    await refuse("mallory")
    now = 60.0
    await refuse("eve")
    rows = await registry.audit_page(AuditQuery(environment=REFUSAL_ENVIRONMENT))
    assert [row.operator for row in rows] == ["eve"] * ROWS_PER_MINUTE + ["mallory", "eve"]


async def test_a_refusal_that_cannot_be_audited_is_answered_all_the_same(
    http: httpx.AsyncClient, registry: MemoryRegistry, operator_token: str
) -> None:
    registry.available = False
    headers = {"authorization": f"Bearer {operator_token}"}
    assert (await http.get("/v1/artifacts/%2e%2e", headers=headers)).status_code == 400
