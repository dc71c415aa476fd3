import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.integration.registry.builders import publication_of
from weightshift.contracts.evidence import AuditHead, AuditQuery, Evidence, Refusal
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.errors import (
    OperationConflict,
)
from weightshift.registry.base import Registry
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, REFUSAL_ENVIRONMENT, ChainBreak, broken_rows
from weightshift.registry.pages import read_all
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.verify import verify_chain

Ready = Callable[..., Awaitable[None]]


def evidence_of(service: Service, operation_id: str, data: dict[str, Any] | None = None) -> Evidence:
    return Evidence(
        service=service,
        release_id=operation_id.partition("/")[0],
        operation_id=operation_id,
        step="download",
        summary="downloaded",
        data=data or {},
    )


def unique(prefix: str) -> str:
    return prefix + secrets.token_hex(4)


async def test_evidence_repeated_is_recorded_once(registry: Registry, service: Service) -> None:
    for data in ({"bytes": 1}, {"bytes": 2}):
        await registry.record_evidence(evidence_of(service, "R1/1", data))
    (row,) = await registry.audit(service)
    assert row.data == {"bytes": 1}


async def test_a_release_is_read_alone(registry: Registry, service: Service) -> None:
    await registry.record_evidence(evidence_of(service, "R1/1"))
    await registry.record_evidence(evidence_of(service, "R2/1"))
    rows = await registry.audit(service, release_id="R2")
    assert [row.operation_id for row in rows] == ["R2/1"]


async def test_an_environment_has_one_unbroken_chain(registry: Registry, service: Service) -> None:
    neighbour = service.model_copy(update={"model": unique("neighbour-")})
    await asyncio.gather(
        *(
            registry.record_evidence(evidence_of(owner, f"R1/{owner.model}/{number}"))
            for owner in (service, neighbour)
            for number in range(10)
        )
    )
    rows = (*await registry.audit(service), *await registry.audit(neighbour))
    chain = sorted(rows, key=lambda row: row.sequence)
    assert [row.sequence for row in chain] == list(range(1, 21))
    assert broken_rows(chain) == ()


async def test_what_is_read_back_still_has_its_hash(registry: Registry, service: Service) -> None:
    data = {"ratio": 1.0, "tiny": 1e-9, "text": "ü\u2028", "nested": {"b": [1, None], "a": True}}
    await registry.record_evidence(evidence_of(service, "R1/1", data))
    rows = await registry.audit(service)
    assert rows[0].data == data
    assert broken_rows(rows) == ()


async def test_an_operation_id_of_evidence_cannot_be_used_to_publish(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.record_evidence(evidence_of(service, "R1/1"))
    with pytest.raises(OperationConflict):
        await registry.publish(publication_of(service, operation_id="R1/1"))


async def test_publications_of_many_models_at_once_leave_one_unbroken_chain(
    registry: Registry, service: Service
) -> None:
    services = [service.model_copy(update={"model": f"{service.model}-{number}"}) for number in range(8)]
    for owner in services:
        record = ArtifactRecord(
            model=owner.model,
            artifact_id="v41",
            manifest_uri="file:///v41",
            manifest_sha256="a" * 64,
            feature_schema="features-1",
        )
        await registry.register_artifact(record, operator="ada")
        await registry.approve_artifact(owner.model, "v41", operator="bob")
    await asyncio.gather(
        *(registry.publish(publication_of(owner, cohort=cohort)) for owner in services for cohort in Cohort)
    )
    rows = [row for owner in services for row in await registry.audit(owner)]
    chain = sorted(rows, key=lambda row: row.sequence)
    assert [row.sequence for row in chain] == list(range(1, 17))
    assert broken_rows(chain) == ()


async def test_rows_are_read_page_by_page_and_filtered(registry: Registry, service: Service) -> None:
    neighbour = service.model_copy(update={"model": unique("neighbour-")})
    for number in range(6):
        owner = neighbour if number % 2 else service
        evidence = evidence_of(owner, f"R{number}/1").model_copy(
            update={"operator": f"operator-{number % 3}"}
        )
        await registry.record_evidence(evidence)
    query = AuditQuery(environment=service.environment, limit=4)
    first = await registry.audit_page(query)
    rest = await registry.audit_page(query.model_copy(update={"after": first[-1].sequence}))
    assert [row.sequence for row in (*first, *rest)] == [1, 2, 3, 4, 5, 6]

    async def numbers(**filters: Any) -> list[int]:
        found = await registry.audit_page(query.model_copy(update=filters))
        return [row.sequence for row in found]

    moment = first[2].recorded_at
    assert await numbers(model=neighbour.model) == [2, 4, 6]
    assert await numbers(release_id="R4") == [5]
    assert await numbers(operator="operator-2") == [3, 6]
    assert await numbers(since=moment, limit=2) == [3, 4]
    assert await numbers(until=moment) == [1, 2]
    assert await numbers(model=service.model, operator="operator-1") == [5]
    assert await numbers(after=6) == []


async def test_a_chain_longer_than_a_page_is_read_whole(registry: Registry, service: Service) -> None:
    for number in range(7):
        await registry.record_evidence(evidence_of(service, f"R1/{number}"))
    query = AuditQuery(environment=service.environment, limit=3)
    assert [row.sequence for row in await read_all(registry.audit_page, query)] == list(range(1, 8))


async def test_the_head_is_the_newest_row(registry: Registry, service: Service) -> None:
    environment = service.environment
    assert await registry.audit_head(environment) == AuditHead(
        environment=environment, sequence=0, hash=FIRST_PREVIOUS_HASH
    )
    for number in range(3):
        await registry.record_evidence(evidence_of(service, f"R1/{number}"))
    newest = (await registry.audit(service))[-1]
    head = await registry.audit_head(environment)
    assert (head.sequence, head.hash) == (3, newest.hash)
    assert await verify_chain(registry.audit_page, environment, known=head) == head


async def test_refused_requests_have_a_chain_of_their_own(registry: Registry) -> None:
    before = await registry.audit_head(REFUSAL_ENVIRONMENT)
    refusal = Refusal(subject="eve", role="operator", method="GET", path="/v1/%2e%2e", error="InvalidInput")
    await registry.record_refusal(refusal)
    query = AuditQuery(environment=REFUSAL_ENVIRONMENT, after=before.sequence)
    (row,) = await registry.audit_page(query)
    assert (row.operator, row.summary) == ("eve", "GET /v1/%2e%2e: InvalidInput")
    assert isinstance(await verify_chain(registry.audit_page, REFUSAL_ENVIRONMENT), AuditHead)


@pytest.mark.parametrize(
    "change",
    [
        "data = '[1]'",
        """data = '{"a": 99999999999999999999}'""",
        """data = '{"a": 1e400}'""",
        """data = '{"a": "\\ud800"}'""",
        "data = (repeat('[', 5000) || repeat(']', 5000))::json",
        "model_name = '../x'",
        "recorded_at = 'infinity'",
        "recorded_at = '4000-01-01 BC'",
        "previous_hash = ''",
        "hash = ''",
    ],
)
async def test_a_row_made_unreadable_is_named_and_hides_no_other(
    postgres_registry: PostgresRegistry,
    owner: "asyncpg.Connection[asyncpg.Record]",
    service: Service,
    change: str,
) -> None:
    for number in range(4):
        await postgres_registry.record_evidence(evidence_of(service, f"R1/{number}"))
    where = "WHERE environment = $1 AND sequence = 2"
    await owner.execute(f"UPDATE audit SET {change} {where}", service.environment)  # noqa: S608
    broken = await verify_chain(postgres_registry.audit_page, service.environment)
    assert isinstance(broken, ChainBreak)
    assert broken.sequence == 2
    rows = await postgres_registry.audit_page(AuditQuery(environment=service.environment))
    assert [row.sequence for row in rows] == [1, 2, 3, 4]
