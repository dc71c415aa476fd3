from collections.abc import Awaitable, Callable

import pytest

from tests.integration.registry.builders import record_of
from weightshift.contracts.identity import Service
from weightshift.contracts.manifest import ArtifactState
from weightshift.errors import (
    ArtifactConflict,
    Conflict,
    UnknownArtifact,
)
from weightshift.registry.base import Registry
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT

Ready = Callable[..., Awaitable[None]]


async def test_a_registered_artifact_is_pending_until_approved(registry: Registry, service: Service) -> None:
    registered = await registry.register_artifact(
        record_of(service).model_copy(update={"state": ArtifactState.READY}), operator="ada"
    )
    assert registered.state is ArtifactState.PENDING
    approved = await registry.approve_artifact(service.model, "v41", operator="bob")
    assert approved.state is ArtifactState.READY
    assert await registry.artifact(service.model, "v41") == approved


async def test_registering_the_same_content_again_returns_what_is_stored(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    repeated = await registry.register_artifact(record_of(service), operator="ada")
    assert repeated.state is ArtifactState.READY


async def test_an_id_taken_by_other_content_is_refused(registry: Registry, service: Service) -> None:
    await registry.register_artifact(record_of(service), operator="ada")
    with pytest.raises(ArtifactConflict, match="v41"):
        await registry.register_artifact(record_of(service, content="b"), operator="ada")


async def test_a_rejected_artifact_stays_rejected(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    for _ in range(2):
        rejected = await registry.reject_artifact(service.model, "v41", operator="ada", reason="leaks labels")
        assert rejected.state is ArtifactState.REJECTED
    with pytest.raises(Conflict, match="rejected"):
        await registry.approve_artifact(service.model, "v41", operator="bob")


async def test_an_unknown_artifact_is_named(registry: Registry, service: Service) -> None:
    with pytest.raises(UnknownArtifact, match="v41"):
        await registry.artifact(service.model, "v41")
    with pytest.raises(UnknownArtifact):
        await registry.approve_artifact(service.model, "v41", operator="bob")
    with pytest.raises(UnknownArtifact):
        await registry.reject_artifact(service.model, "v41", operator="ada", reason="none")


async def test_artifacts_are_listed_newest_first(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41", "v42")
    assert [record.artifact_id for record in await registry.artifacts(service.model)] == ["v42", "v41"]


async def test_every_step_of_an_artifact_is_audited_once(
    registry: Registry, service: Service, ready: Ready
) -> None:
    for _ in range(2):
        await ready("v41")
    await registry.reject_artifact(service.model, "v41", operator="bob", reason="leaks labels")
    rows = await registry.audit(Service(model=service.model, environment=ARTIFACT_ENVIRONMENT))
    assert [(row.step, row.operator) for row in rows] == [
        ("artifact-registered", "ada"),
        ("artifact-approved", "bob"),
        ("artifact-rejected", "bob"),
    ]
    assert rows[-1].summary == "leaks labels"


async def test_a_signature_may_come_back_after_another_one(registry: Registry, service: Service) -> None:
    for digit in ("1", "2", "1", "2", "2"):
        record = record_of(service).model_copy(update={"signature_sha256": digit * 64})
        assert (await registry.register_artifact(record, operator="ada")).signature_sha256 == digit * 64
    rows = await registry.audit(Service(model=service.model, environment=ARTIFACT_ENVIRONMENT))
    assert [row.step for row in rows] == ["artifact-registered", *["artifact-signed"] * 3]
