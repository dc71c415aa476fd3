"""Whatever a client sends, the answer is one of ours, and it spoils nothing for anybody else."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.integration.registry.builders import record_of, report_of
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import CandidatePhase, CandidateProgress, InstanceError, InstanceReport
from weightshift.registry.endpoint import Endpoint
from weightshift.registry.routes import Routes
from weightshift.registry.service import create_app
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.tokens import EVERY, Grant, MemoryTokens, Role
from weightshift.registry.watch import TargetBell

MINUTE = timedelta(minutes=1)
ODD_TEXTS = ("a\0b", "\x1b[31mred", "\r\n", "", "é" * 300, "x" * 60_000, "NaN", "../..")
ODD_NUMBERS = (-1, 1 << 53, 1 << 63, 10**400, 1e308, float("nan"), float("inf"))
ODD_VALUES: tuple[Any, ...] = (*ODD_TEXTS, *ODD_NUMBERS, None, True, [], {}, [[]], {"a": "\0"})
ODD_QUERIES = (
    *("%00", "%ff", "a%0Ab", "-1", "9" * 25, "9" * 5_000, "nan", "x" * 10_000, "", "1e400"),
    *("0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z"),
)
ODD_TAGS = ("*", '""', 'W/"1"', '"-1"', f'"{"9" * 5_000}"', '"9223372036854775808"', '"٣"')
ODD_BODIES = (
    b"",
    b"null",
    b"{",
    b"[" * 50_000,
    b'{"a":' * 30_000,
    b"\xff",
    b'{"reason":"\\ud800"}',
    b"9" * 9_000,
)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Sends requests with the token of the right role, and takes no failure of ours for an answer."""

    http: httpx.AsyncClient
    tokens: dict[Role, str]

    async def send(self, role: Role, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.tokens[role]}"} | request.pop("headers", {})
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        response = await self.http.request(method, path, headers=raw, **request)
        assert response.status_code < 500, (method, path, request, response.text)
        return response


@pytest.fixture
async def caller(postgres_registry: PostgresRegistry, service: Service) -> AsyncIterator[Caller]:
    tokens = MemoryTokens()
    app = create_app(registry=postgres_registry, tokens=tokens, bell=TargetBell())
    bound = {"model": service.model, "environment": service.environment}
    everywhere = {"model": EVERY, "environment": EVERY}
    issued = {
        role: tokens.issue(Grant(role=role, subject="ada", **(bound if role is Role.RUNTIME else everywhere)))
        for role in Role
    }
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://registry", timeout=30
    ) as http:
        yield Caller(http=http, tokens=issued)


@pytest.fixture
def endpoints(postgres_registry: PostgresRegistry) -> tuple[Endpoint, ...]:
    routes = Routes(registry=postgres_registry, bell=TargetBell(), lost_after=MINUTE, mismatch_after=MINUTE)
    return routes.endpoints()


def path_of(endpoint: Endpoint, service: Service, **changes: str) -> str:
    names = {
        "model": service.model,
        "environment": service.environment,
        "artifact_id": "v41",
        "instance_id": "gpu-0",
        "cohort": "canary",
        "approval_id": "A1",
    }
    return endpoint.path.format_map(names | changes)


def documents_of(service: Service) -> dict[str, dict[str, Any]]:
    """A good body for every type of body there is."""
    error = InstanceError(type="E", message="m", phase=CandidatePhase.LOADING, permanent=True)
    candidate = CandidateProgress(
        revision=1,
        artifact_id="v41",
        phase=CandidatePhase.FAILED,
        phase_seconds={"loading": 1.0},
        error=error,
    )
    report = report_of(service, revision=1, candidate=candidate, memory_used_bytes=1, memory_limit_bytes=2)
    approval = {
        "release_id": "R1",
        "artifact_id": "v41",
        "lifetime": "1h",
        "operation_id": "o",
        "reason": "r",
    }
    return {
        "Registration": record_of(service).model_dump(mode="json"),
        "InstanceReport": report.model_dump(mode="json"),
        "ReleaseApproval": approval,
        "Reason": {"reason": "leaks"},
        "BrokenGlass": {
            "operation_id": "o",
            "before": {"stable": 0, "canary": 100},
            "split": {"stable": 100, "canary": 0},
            "fence": {"epoch": 1, "sequence": 2},
            "operator": "ada",
            "reason": "r",
        },
    }


def spoiled(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every copy of a document with one odd value somewhere."""
    for name, value in document.items():
        for odd in ODD_VALUES:
            yield document | {name: odd}
        if isinstance(value, dict):
            for inner in spoiled(value):
                yield document | {name: inner}


async def test_every_field_of_every_body_is_bounded(
    caller: Caller, endpoints: tuple[Endpoint, ...], service: Service
) -> None:
    documents = documents_of(service)
    await caller.send(Role.OPERATOR, "POST", "/v1/artifacts", json=documents["Registration"])
    for endpoint in endpoints:
        if endpoint.body is None or endpoint.body is InstanceReport:  # whose test is the next one
            continue
        role, path = endpoint.roles[0], path_of(endpoint, service)
        for document in spoiled(documents[endpoint.body.__name__]):
            await caller.send(role, endpoint.method, path, content=json.dumps(document))
        for content in ODD_BODIES:
            await caller.send(role, endpoint.method, path, content=content)


async def test_no_report_spoils_what_others_read(caller: Caller, service: Service) -> None:
    documents = documents_of(service)
    await caller.send(Role.OPERATOR, "POST", "/v1/artifacts", json=documents["Registration"])
    statuses = set()
    for number, document in enumerate(spoiled(documents["InstanceReport"])):
        own = {"instance_id": f"gpu-{number}"} if document["instance_id"] == "gpu-0" else {}
        content = json.dumps(document | own)
        stored = await caller.send(Role.RUNTIME, "PUT", f"/v1/instances/gpu-{number}", content=content)
        statuses.add(stored.status_code)
    assert statuses == {204, 400, 403}
    assert (await caller.send(Role.METRICS, "GET", "/metrics")).status_code == 200
    assert (await caller.send(Role.OPERATOR, "GET", f"/v1/instances/{service}")).status_code == 200
    reject = f"/v1/artifacts/{service.model}/v41/reject"
    rejected = await caller.send(Role.OPERATOR, "POST", reject, json={"reason": "leaks"})
    assert rejected.json()["in_use"]


async def test_every_query_is_bounded(
    caller: Caller, endpoints: tuple[Endpoint, ...], service: Service
) -> None:
    for endpoint in endpoints:
        for name in endpoint.query.model_fields if endpoint.query else ():
            for odd in ODD_QUERIES:
                path = f"{path_of(endpoint, service)}?{name}={odd}"
                await caller.send(endpoint.roles[0], endpoint.method, path)


async def test_every_path_is_bounded(
    caller: Caller, endpoints: tuple[Endpoint, ...], service: Service
) -> None:
    for endpoint in endpoints:
        for name in ("model", "environment", "artifact_id", "instance_id", "cohort", "approval_id"):
            if f"{{{name}}}" in endpoint.path:
                for odd in ("%00", "%2e%2e", "..%5c..", "%0a", "x" * 5_000, "%ff", "٣", "-", "*"):
                    path = path_of(endpoint, service, **{name: odd})
                    response = await caller.send(endpoint.roles[0], endpoint.method, path)
                    assert response.status_code in (400, 403, 404), path


@pytest.mark.parametrize("tag", ODD_TAGS)
async def test_every_known_revision_is_bounded(caller: Caller, service: Service, tag: str) -> None:
    path = f"/v1/targets/{service}/canary"
    response = await caller.send(Role.RUNTIME, "GET", path, headers={"if-none-match": tag})
    assert response.status_code == 400


async def test_what_a_client_wrote_reads_back_printable(caller: Caller, service: Service) -> None:
    report = report_of(service, boot_id="1").model_dump(mode="json") | {"runtime_build": "a\0\x1b[31mb"}
    await caller.send(Role.RUNTIME, "PUT", "/v1/instances/gpu-0", json=report)
    instances = await caller.send(Role.OPERATOR, "GET", f"/v1/instances/{service}")
    assert instances.json()["instances"][0]["report"]["runtime_build"] == "a[31mb"
