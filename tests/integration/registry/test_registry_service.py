"""The service as its own process, over a real database."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import asyncpg
import pytest

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import Publication
from weightshift.errors import RevisionConflict, Unauthorised
from weightshift.local.ports import free_ports
from weightshift.local.postgres import PostgresAddress
from weightshift.local.processes import ManagedProcess, running
from weightshift.local.services import registry_spec
from weightshift.registry.chain import ChainBreak
from weightshift.registry.client import RegistryClient
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.tokens import EVERY, Role, issue_token, revoke_token, token_id
from weightshift.registry.verify import verify_chain


@dataclass(frozen=True, kw_only=True)
class Clients:
    operator: RegistryClient
    runtime: RegistryClient
    operator_token: str
    runtime_token: str


@pytest.fixture(scope="session")
async def url(database: PostgresAddress, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    directory: Path = tmp_path_factory.mktemp("service")
    (port,) = free_ports(1)
    async with running(ManagedProcess(spec=registry_spec(directory, database, port), directory=directory)):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def clients(url: str, database: PostgresAddress, service: Service) -> AsyncIterator[Clients]:
    operator = await issue_token(
        dsn=database.owner_dsn, role=Role.OPERATOR, subject="ada", model=EVERY, environment=EVERY
    )
    runtime = await issue_token(
        dsn=database.application_dsn,
        role=Role.RUNTIME,
        subject="gpu-pool",
        model=service.model,
        environment=service.environment,
    )
    async with (
        RegistryClient(url=url, token=operator) as first,
        RegistryClient(url=url, token=runtime) as second,
    ):
        yield Clients(operator=first, runtime=second, operator_token=operator, runtime_token=runtime)


def publication_of(service: Service, number: int) -> Publication:
    return Publication(
        service=service,
        cohort=Cohort.CANARY,
        artifact_id="v41",
        expected_revision=number - 1,
        fence=Fence(epoch=0, sequence=number),
        operation_id=f"R1/{number}",
        release_id="R1",
        operator="ada",
    )


async def make_ready(operator: RegistryClient, service: Service) -> None:
    record = ArtifactRecord(
        model=service.model,
        artifact_id="v41",
        manifest_uri="file:///v41",
        manifest_sha256="a" * 64,
        feature_schema="features-1",
    )
    await operator.register_artifact(record)
    await operator.approve_artifact(service.model, "v41")


async def test_every_runtime_that_waits_learns_of_a_publication(
    clients: Clients, postgres_registry: PostgresRegistry, service: Service
) -> None:
    await make_ready(clients.operator, service)
    polls = [
        asyncio.create_task(clients.runtime.target(service, Cohort.CANARY, known_revision=0, wait=30.0))
        for _ in range(20)
    ]
    target = await postgres_registry.publish(publication_of(service, 1))
    async with asyncio.timeout(25):
        assert await asyncio.gather(*polls) == [target] * 20


async def test_a_runtime_follows_target_after_target(
    clients: Clients, postgres_registry: PostgresRegistry, service: Service
) -> None:
    await make_ready(clients.operator, service)
    known = 0
    for number in range(1, 6):
        poll = asyncio.create_task(
            clients.runtime.target(service, Cohort.CANARY, known_revision=known, wait=30.0)
        )
        await postgres_registry.publish(publication_of(service, number))
        async with asyncio.timeout(25):
            target = await poll
        assert target is not None
        assert target.revision == number
        known = target.revision


async def test_reports_are_seen_by_the_control_plane(clients: Clients, service: Service) -> None:
    report = InstanceReport(instance_id="gpu-0", boot_id="1", service=service, cohort=Cohort.CANARY)
    await clients.runtime.report(report)
    (state,) = await clients.operator.instances(service)
    assert state.report == report


async def test_a_revoked_token_is_refused_from_then_on(
    clients: Clients, database: PostgresAddress, service: Service
) -> None:
    await clients.runtime.targets(service)
    await revoke_token(dsn=database.application_dsn, token_id=token_id(clients.runtime_token))
    with pytest.raises(Unauthorised):
        await clients.runtime.targets(service)


async def test_tokens_are_stored_as_digests_only(
    clients: Clients, database: PostgresAddress, postgres_registry: PostgresRegistry
) -> None:
    async with postgres_registry.database.connection() as connection:
        rows = await connection.fetch("SELECT access_token::text AS row FROM access_token")
    assert rows
    assert not any(clients.runtime_token in row["row"] for row in rows)


async def test_what_is_published_through_a_conflict_is_not_seen(
    clients: Clients, postgres_registry: PostgresRegistry, service: Service
) -> None:
    await make_ready(clients.operator, service)
    with pytest.raises(RevisionConflict):
        await postgres_registry.publish(publication_of(service, 2))
    assert await clients.runtime.target(service, Cohort.CANARY) is None


async def test_a_row_changed_in_the_database_is_named_over_http(
    clients: Clients,
    postgres_registry: PostgresRegistry,
    owner: "asyncpg.Connection[asyncpg.Record]",
    service: Service,
) -> None:
    await make_ready(clients.operator, service)
    for number in range(1, 4):
        await postgres_registry.publish(publication_of(service, number))
    environment = service.environment
    head = await clients.operator.audit_head(environment)
    assert await verify_chain(clients.operator.audit_page, environment, known=head) == head
    await owner.execute(
        "UPDATE audit SET operator = 'eve' WHERE environment = $1 AND sequence = 2", environment
    )
    broken = await verify_chain(clients.operator.audit_page, environment)
    assert broken == ChainBreak(sequence=2, problem="it was changed after it was written")


def post(url: str, path: str, token: str, size: int) -> int:
    """Send all of a body before looking at the answer, as most clients do; return the answer's status."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=20)
    try:
        connection.request("POST", path, b" " * size, {"authorization": f"Bearer {token}"})
        response = connection.getresponse()
        assert response.read().startswith(b'{"error":')
        return response.status
    finally:
        connection.close()


@pytest.mark.parametrize("size", [1 << 19, 32 << 20])
async def test_a_body_that_is_too_large_is_refused_and_not_reset(
    url: str, clients: Clients, size: int
) -> None:
    for token, path, status in (
        (clients.operator_token, "/v1/artifacts", 413),
        (clients.runtime_token, "/v1/artifacts", 403),
        (clients.operator_token, "/nowhere", 404),
        ("wrong", "/v1/artifacts", 401),
    ):
        assert await asyncio.to_thread(post, url, path, token, size) == status


async def test_who_asks_before_sending_sends_nothing(url: str, clients: Clients) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /v1/artifacts HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {clients.operator_token}\r\n"
        f"content-length: {1 << 30}\r\nexpect: 100-continue\r\n\r\n"
    )
    writer.write(head.encode())
    async with asyncio.timeout(4):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()
