import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from weightshift.contracts.evidence import Evidence
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import Publication
from weightshift.errors import (
    OperationConflict,
)
from weightshift.registry.base import Registry
from weightshift.registry.chain import broken_rows

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


def publication_of(service: Service, **changes: Any) -> Publication:
    values = {
        "service": service,
        "cohort": Cohort.CANARY,
        "artifact_id": "v41",
        "expected_revision": 0,
        "fence": Fence(epoch=1, sequence=1),
        "operation_id": secrets.token_hex(8),
        "release_id": "R1",
        "operator": "ada",
    }
    return Publication.model_validate(values | changes)


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
