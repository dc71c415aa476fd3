"""The routes and the client together, over an in-memory registry."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from weightshift.contracts.evidence import Evidence
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.contracts.release import Admission, ReleaseRequest
from weightshift.contracts.target import Publication, Target
from weightshift.errors import (
    ArtifactConflict,
    Conflict,
    InvalidInput,
    RegistryUnreachable,
    Unauthorised,
    UnknownArtifact,
)
from weightshift.registry import client as registry_client
from weightshift.registry.client import RegistryClient
from weightshift.registry.memory import MemoryRegistry

RECORD = ArtifactRecord(
    model="ranker",
    artifact_id="v41",
    manifest_uri="file:///v41",
    manifest_sha256="a" * 64,
    feature_schema="features-1",
)


async def publish(registry: MemoryRegistry, service: Service, number: int = 1) -> Target:
    await registry.register_artifact(RECORD, operator="ada")
    await registry.approve_artifact("ranker", "v41", operator="ada")
    return await registry.publish(
        Publication(
            service=service,
            cohort=Cohort.CANARY,
            artifact_id="v41",
            fence=Fence(epoch=0, sequence=number),
            operation_id=f"R1/{number}",
            release_id="R1",
            operator="ada",
        )
    )


async def test_an_artifacts_life_is_recorded_under_the_tokens_name(
    operator: RegistryClient, registry: MemoryRegistry
) -> None:
    pending = await operator.register_artifact(RECORD)
    assert pending.state is ArtifactState.PENDING
    assert (await operator.approve_artifact("ranker", "v41")).state is ArtifactState.READY
    assert await operator.artifact("ranker", "v41") == (await operator.artifacts("ranker"))[0]
    assert (await operator.reject_artifact("ranker", "v41", "leaks")).state is ArtifactState.REJECTED
    rows = await operator.audit(Service(model="ranker", environment="artifacts"))
    assert [row.operator for row in rows] == ["ada"] * 3


async def test_an_operator_learns_whose_token_it_is(
    operator: RegistryClient, runtime: RegistryClient
) -> None:
    assert (await operator.identity()).model_dump() == {
        "subject": "ada",
        "role": "operator",
        "model": "*",
        "environment": "*",
    }
    with pytest.raises(Unauthorised):
        await runtime.identity()


async def test_errors_arrive_as_the_class_they_were_raised_as(operator: RegistryClient) -> None:
    with pytest.raises(UnknownArtifact, match="v41"):
        await operator.artifact("ranker", "v41")
    await operator.register_artifact(RECORD)
    with pytest.raises(ArtifactConflict, match="taken"):
        await operator.register_artifact(RECORD.model_copy(update={"manifest_sha256": "b" * 64}))
    await operator.reject_artifact("ranker", "v41", "leaks")
    with pytest.raises(Conflict, match="rejected"):
        await operator.approve_artifact("ranker", "v41")


async def test_targets_instances_releases_and_evidence_can_be_read(
    operator: RegistryClient, runtime: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    target = await publish(registry, service)
    report = InstanceReport(instance_id="gpu-0", boot_id="1", service=service, cohort=Cohort.CANARY)
    await runtime.report(report)
    request = ReleaseRequest(release_id="R1", service=service, artifact_id="v41", operator="ada")
    await registry.admit(Admission(request=request, run_id="run-1"))
    await registry.record_evidence(
        Evidence(service=service, release_id="R2", operation_id="R2/1", step="warm-up", summary="warm")
    )
    assert (await operator.targets(service)).canary == target
    (state,) = await operator.instances(service)
    assert (state.report, state.lost) == (report, False)
    assert await operator.releases(service) == await registry.releases(service)
    assert await operator.audit(service) == await registry.audit(service)
    assert [row.step for row in await operator.audit(service, "R2")] == ["warm-up"]


async def test_a_known_revision_is_not_sent_again(
    http: httpx.AsyncClient, registry: MemoryRegistry, runtime_token: str, service: Service
) -> None:
    headers = {"authorization": f"Bearer {runtime_token}"}
    path = "/v1/targets/test/ranker/canary"
    missing = await http.get(path, headers=headers)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "UnknownService")
    none_known = await http.get(path, headers=headers | {"if-none-match": '"0"'})
    assert none_known.status_code == 304
    await publish(registry, service)
    found = await http.get(path, headers=headers)
    assert (found.status_code, found.headers["etag"]) == (200, '"1"')
    same = await http.get(path, headers=headers | {"if-none-match": found.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"if-none-match": "*"}, ""),
        ({"if-none-match": '"-1"'}, ""),
        ({"if-none-match": '"²"'}, ""),
        ({}, "?wait=31"),
        ({}, "?wait=-1"),
        ({}, "?wait=nan"),
        ({}, "?wait=soon"),
    ],
)
async def test_a_wait_for_something_impossible_is_refused(
    http: httpx.AsyncClient, runtime_token: str, headers: dict[str, str], query: str
) -> None:
    headers = {"authorization": f"Bearer {runtime_token}"} | headers
    raw = {name.encode(): value.encode() for name, value in headers.items()}
    response = await http.get(f"/v1/targets/test/ranker/canary{query}", headers=raw)
    assert response.status_code == 400


async def test_a_long_poll_answers_when_the_target_changes(
    runtime: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    first = await publish(registry, service)
    poll = asyncio.create_task(runtime.target(service, Cohort.CANARY, known_revision=1, wait=30.0))
    async with asyncio.timeout(5):
        while registry.bell.waiting == 0:
            await asyncio.sleep(0)
    assert not poll.done()
    second = await publish(registry, service, number=2)
    async with asyncio.timeout(5):
        assert await poll == second
    assert (first.revision, second.revision) == (1, 2)


async def test_a_long_poll_ends_with_nothing_new(
    runtime: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    assert await runtime.target(service, Cohort.CANARY, known_revision=0, wait=0.01) is None
    await publish(registry, service)
    assert await runtime.target(service, Cohort.CANARY, known_revision=1, wait=0.01) is None


async def test_a_registry_nobody_listens_for_is_unreachable(service: Service) -> None:
    async with RegistryClient(url="http://127.0.0.1:1", token="secret-token") as client:
        with pytest.raises(RegistryUnreachable) as caught:
            await client.targets(service)
    assert "secret-token" not in str(caught.value)


@pytest.mark.parametrize("token", ["", " ", "tökén", "a b", "a\nb", "\0"])
async def test_what_cannot_be_a_token_is_not_sent(token: str, service: Service) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise AssertionError

    async with RegistryClient(
        url="http://registry", token=token, transport=httpx.MockTransport(refuse)
    ) as client:
        with pytest.raises(Unauthorised, match="WEIGHTSHIFT_REGISTRY_TOKEN"):
            await client.targets(service)


@pytest.mark.parametrize("name", ["", "..", "../x", "v1/approve", "v1?x=1", "v1#", "v1\n", "%2e", "x" * 101])
async def test_what_is_no_name_makes_no_other_path(operator: RegistryClient, name: str) -> None:
    for attempt in (
        operator.artifact("ranker", name),
        operator.artifact(name, "v1"),
        operator.artifacts(name),
        operator.approve_artifact("ranker", name),
        operator.reject_artifact("ranker", name, "leaks"),
        operator.audit_head(name),
    ):
        with pytest.raises(InvalidInput, match="is not a name"):
            await attempt


@pytest.mark.parametrize("url", ["", "registry", "file:///etc/passwd", "http://", "http://[::1", "ftp://x"])
def test_what_is_no_address_of_a_registry_is_bad_input(url: str) -> None:
    with pytest.raises(InvalidInput, match="WEIGHTSHIFT_REGISTRY_URL"):
        RegistryClient(url=url, token="t")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502, text="<html>Bad gateway</html>"),
        httpx.Response(502, json={"error": {"type": "NotOurs", "message": "x"}}),
        httpx.Response(500, json=["error"]),
        httpx.Response(302, headers={"location": "http://169.254.169.254/"}),
        httpx.Response(200, text="not JSON"),
        httpx.Response(200, json={"artifacts": [{"model": "../x"}], "canary": 1}),
        httpx.Response(500, text="[" * 100_000),
    ],
)
async def test_an_answer_that_is_not_the_registrys_is_unreachable(
    answer: httpx.Response, service: Service
) -> None:
    transport = httpx.MockTransport(lambda _: answer)
    async with RegistryClient(url="http://registry", token="t", transport=transport) as client:
        with pytest.raises(RegistryUnreachable):
            await client.targets(service)
        with pytest.raises(RegistryUnreachable):
            await client.artifacts("ranker")


async def test_an_answer_that_cannot_be_unpacked_is_unreachable(service: Service) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"not gzip"))

    transport = httpx.MockTransport(answer)
    async with RegistryClient(url="http://registry", token="t", transport=transport) as client:
        with pytest.raises(RegistryUnreachable):
            await client.targets(service)


async def test_an_answer_that_is_too_long_is_given_up_before_it_takes_much_memory(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "MOST_ANSWER_BYTES", 1 << 20)
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 8 << 20:
            sent += 1 << 16
            yield b" " * (1 << 16)

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=pieces()))
    async with RegistryClient(url="http://registry", token="t", transport=transport) as registry:
        with pytest.raises(RegistryUnreachable, match="more than 1048576 bytes"):
            await registry.targets(service)
    assert sent == (1 << 20) + (1 << 16)


async def test_a_registry_that_never_ends_its_answer_is_unreachable_in_time(service: Service) -> None:
    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    transport = httpx.MockTransport(hang)
    async with RegistryClient(url="http://registry", token="t", timeout=0.05, transport=transport) as client:
        with pytest.raises(RegistryUnreachable):
            await client.targets(service)
