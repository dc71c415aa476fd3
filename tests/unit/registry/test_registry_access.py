"""Who may do what over HTTP: nobody anything, unless a token says so."""

import json
import logging
from collections.abc import AsyncIterator

import httpx
import pytest

from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.errors import InvalidInput, RegistryUnreachable, Unauthorised
from weightshift.registry.client import RegistryClient
from weightshift.registry.guard import BODY_LIMIT
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.tokens import EVERY, Grant, MemoryTokens, Role

PATHS = [
    "/v1/targets/test/ranker",
    "/v1/targets/test/ranker/stable",
    "/v1/instances/gpu-0",
    "/v1/instances/test/ranker",
    "/v1/artifacts",
    "/v1/artifacts/ranker",
    "/v1/artifacts/ranker/v41",
    "/v1/artifacts/ranker/v41/approve",
    "/v1/artifacts/ranker/v41/reject",
    "/v1/releases/test/ranker",
    "/v1/audit/test/ranker",
    "/v1/chains/test",
    "/v1/chains/test/head",
    "/v1/grants/test/ranker",
    "/v1/approvals/test/ranker",
    "/v1/approvals/test/ranker/A1",
    "/v1/break-glass/test/ranker",
    "/v1/identity",
    "/metrics",
    "/openapi.json",
    "/",
    "/no/such/route",
    "/healthz/",
]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]

RECORD = ArtifactRecord(
    model="ranker",
    artifact_id="v41",
    manifest_uri="file:///v41",
    manifest_sha256="a" * 64,
    feature_schema="features-1",
)


def report_of(service: Service, instance_id: str = "gpu-0") -> InstanceReport:
    return InstanceReport(instance_id=instance_id, boot_id="1", service=service, cohort=Cohort.CANARY)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_the_health_of_the_service_needs_no_token(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.post("/healthz")).status_code == 401


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_token_every_route_and_method_is_refused(http: httpx.AsyncClient, path: str) -> None:
    for method in METHODS:
        response = await http.request(method, path)
        assert (method, response.status_code) == (method, 401)
        assert response.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert response.json()["error"]["type"] == "Unauthorised"


async def test_a_token_that_is_not_exactly_one_of_ours_is_refused(
    http: httpx.AsyncClient, operator_token: str
) -> None:
    for header in (
        "Bearer wrong",
        f"Bearer {operator_token} ",
        f"Bearer {operator_token[:-1]}",
        f"Basic {operator_token}",
        operator_token,
        "Bearer",
        "Bearer ü".encode().decode("latin-1"),
    ):
        raw = [(b"authorization", header.encode("latin-1"))]
        response = await http.get("/v1/targets/test/ranker", headers=httpx.Headers(raw))
        assert (header, response.status_code) == (header, 401)


async def test_a_runtime_reads_its_own_service_and_reports(
    runtime: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    await registry.register_artifact(RECORD, operator="ada")
    assert (await runtime.targets(service)).stable is None
    assert await runtime.target(service, Cohort.STABLE) is None
    assert (await runtime.artifact("ranker", "v41")).artifact_id == "v41"
    assert len(await runtime.artifacts("ranker")) == 1
    await runtime.report(report_of(service))


async def test_a_runtime_does_nothing_else(runtime: RegistryClient, service: Service) -> None:
    for attempt in (
        runtime.instances(service),
        runtime.releases(service),
        runtime.audit(service),
        runtime.register_artifact(RECORD),
        runtime.approve_artifact("ranker", "v41"),
        runtime.reject_artifact("ranker", "v41", "no"),
    ):
        with pytest.raises(Unauthorised, match="role runtime"):
            await attempt


@pytest.mark.parametrize("change", [{"model": "other"}, {"environment": "production"}])
async def test_a_runtime_sees_no_other_service(
    runtime: RegistryClient, registry: MemoryRegistry, service: Service, change: dict[str, str]
) -> None:
    other = service.model_copy(update=change)
    with pytest.raises(Unauthorised):
        await runtime.targets(other)
    with pytest.raises(Unauthorised):
        await runtime.target(other, Cohort.STABLE)
    with pytest.raises(Unauthorised):
        await runtime.report(report_of(other))
    with pytest.raises(Unauthorised):
        await runtime.artifacts("other")
    assert not registry._reports


async def test_an_operator_does_not_report(operator: RegistryClient, service: Service) -> None:
    with pytest.raises(Unauthorised, match="role operator"):
        await operator.report(report_of(service))


async def test_an_operator_of_one_environment_registers_but_does_not_approve(
    transport: httpx.ASGITransport, tokens: MemoryTokens, service: Service
) -> None:
    token = tokens.issue(Grant(role=Role.OPERATOR, subject="bob", model="ranker", environment="test"))
    async with RegistryClient(url="http://registry", token=token, transport=transport) as bob:
        assert (await bob.targets(service)).stable is None
        await bob.register_artifact(RECORD)
        with pytest.raises(Unauthorised, match="every environment"):
            await bob.approve_artifact("ranker", "v41")
        with pytest.raises(Unauthorised, match="every environment"):
            await bob.reject_artifact("ranker", "v41", "no")
        with pytest.raises(Unauthorised, match="environment production"):
            await bob.audit(service.model_copy(update={"environment": "production"}))
        with pytest.raises(Unauthorised, match="model other"):
            await bob.register_artifact(RECORD.model_copy(update={"model": "other"}))


async def test_only_an_operator_of_every_environment_signs_a_ready_artifact_again(
    transport: httpx.ASGITransport, tokens: MemoryTokens, operator: RegistryClient
) -> None:
    first, second = (RECORD.model_copy(update={"signature_sha256": digit * 64}) for digit in "12")
    token = tokens.issue(Grant(role=Role.OPERATOR, subject="bob", model="ranker", environment="test"))
    async with RegistryClient(url="http://registry", token=token, transport=transport) as bob:
        for pending in (first, second, first):
            await bob.register_artifact(pending)
        await operator.approve_artifact("ranker", "v41")
        await bob.register_artifact(first)
        await bob.register_artifact(RECORD)
        with pytest.raises(Unauthorised, match="every environment"):
            await bob.register_artifact(second)
        assert (await operator.register_artifact(second)).signature_sha256 == second.signature_sha256


def test_a_runtime_token_is_bound_to_one_service(tokens: MemoryTokens) -> None:
    with pytest.raises(InvalidInput, match="one model"):
        tokens.issue(Grant(role=Role.RUNTIME, subject="gpu", model=EVERY, environment="test"))


@pytest.mark.parametrize("subject", ["", " ", "ada ", "a\nb", "\x1b[31m", "\0", "x" * 201])
def test_a_token_is_held_by_somebody_with_a_name(tokens: MemoryTokens, subject: str) -> None:
    with pytest.raises(InvalidInput, match="subject"):
        tokens.issue(Grant(role=Role.OPERATOR, subject=subject, model=EVERY, environment=EVERY))


@pytest.mark.parametrize("name", ["", "../x", "**", "a b", "x" * 101])
def test_a_token_is_bound_to_names(tokens: MemoryTokens, name: str) -> None:
    for bound in ({"model": name, "environment": EVERY}, {"model": EVERY, "environment": name}):
        with pytest.raises(InvalidInput, match=r"is \* or a name"):
            tokens.issue(Grant(role=Role.OPERATOR, subject="ada", **bound))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/artifacts/%2e%2e",
        "/v1/artifacts/ranker/..%5c..%5cetc",
        "/v1/targets/test/%2e%2e",
        "/v1/targets/-test/ranker",
        "/v1/targets/test/ranker/green",
        "/v1/artifacts/ranker/a%00b",
        "/v1/artifacts/ranker/a%0a",
        f"/v1/artifacts/{'a' * 101}",
    ],
)
async def test_a_name_that_is_not_one_is_refused(
    http: httpx.AsyncClient, operator_token: str, path: str
) -> None:
    response = await http.get(path, headers=bearer(operator_token))
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "InvalidInput"


async def test_a_refusal_is_logged_with_the_name_and_without_the_token(
    http: httpx.AsyncClient, operator_token: str, caplog: pytest.LogCaptureFixture
) -> None:
    await http.get("/v1/artifacts/%0aforged", headers=bearer(operator_token))
    await http.get("/v1/artifacts/ranker", headers=bearer("guessed-token"))
    assert [record.getMessage() for record in caplog.records if record.name.endswith("guard")] == [
        r"Refused GET '/v1/artifacts/\nforged' of ada: InvalidInput",
        "Refused GET '/v1/artifacts/ranker' of nobody: MissingToken",
    ]


@pytest.mark.parametrize("path", ["/v1/artifacts/..%2f..%2fetc/passwd/x/y", "/v1/unknown"])
async def test_a_path_that_is_no_route_is_not_found(
    http: httpx.AsyncClient, operator_token: str, path: str
) -> None:
    response = await http.get(path, headers=bearer(operator_token))
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "InvalidInput"


async def test_a_body_that_is_too_large_is_refused(http: httpx.AsyncClient, operator_token: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 65_536

    for content in (b" " * (BODY_LIMIT + 1), endless()):
        response = await http.post("/v1/artifacts", content=content, headers=bearer(operator_token))
        assert response.status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "../etc"}', b'{"reason": 1}', b"\xff"])
async def test_a_body_that_is_not_what_is_asked_for_is_refused(
    http: httpx.AsyncClient, operator_token: str, body: bytes
) -> None:
    for path in ("/v1/artifacts", "/v1/artifacts/ranker/v41/reject"):
        response = await http.post(path, content=body, headers=bearer(operator_token))
        assert response.status_code == 400
        assert "etc" not in response.text


async def test_a_failure_shows_nothing_of_the_inside(
    http: httpx.AsyncClient,
    registry: MemoryRegistry,
    operator_token: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("secret-path")

    monkeypatch.setattr(registry, "targets", fail)
    with caplog.at_level(logging.ERROR):
        response = await http.get("/v1/targets/test/ranker", headers=bearer(operator_token))
    assert response.status_code == 500
    assert "secret-path" not in response.text
    assert "secret-path" in caplog.text
    assert operator_token not in caplog.text


async def test_a_registry_that_is_away_is_unavailable(
    http: httpx.AsyncClient, operator: RegistryClient, registry: MemoryRegistry, operator_token: str
) -> None:
    registry.available = False
    response = await http.get("/v1/artifacts/ranker", headers=bearer(operator_token))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    with pytest.raises(RegistryUnreachable):
        await operator.artifacts("ranker")


async def test_an_instance_reports_under_its_own_name_only(
    http: httpx.AsyncClient, runtime_token: str, service: Service
) -> None:
    response = await http.put(
        "/v1/instances/gpu-1",
        content=json.dumps(report_of(service, "gpu-2").model_dump(mode="json")),
        headers=bearer(runtime_token),
    )
    assert response.status_code == 400
