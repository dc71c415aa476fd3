"""What a registry with a release key promises: only signed artifacts, and every target authorised."""

import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weightshift.artifacts.release_authorisation import ReleaseAuthoriser, verify_authorisation
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.contracts.approval import ApprovalPolicy
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Admission, ReleaseRequest
from weightshift.contracts.target import Publication
from weightshift.errors import ArtifactNotReady
from weightshift.local.postgres import PostgresAddress
from weightshift.registry.base import Registry
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.store import PostgresRegistry

KEY = SigningKey.generate(KeyRole.RELEASE)
KEYS = VerificationKeys.from_pem(KEY.public_pem(), role=KeyRole.RELEASE, source="test")


def authoriser(validity: timedelta = timedelta(days=7)) -> ReleaseAuthoriser:
    return ReleaseAuthoriser(key=KEY, accepted=KEYS, validity=validity)


@pytest.fixture(params=["memory", "postgres"])
def address(request: pytest.FixtureRequest) -> PostgresAddress | None:
    """Where the rows are kept; None for a registry in memory."""
    return request.getfixturevalue("database") if request.param == "postgres" else None


@pytest.fixture
async def signing_registry(address: PostgresAddress | None) -> AsyncIterator[Callable[..., Any]]:
    """Makes a registry with a release key."""
    opened: list[PostgresRegistry] = []

    async def make(**options: Any) -> Registry:
        if address is None:
            return MemoryRegistry(authoriser=authoriser(**options))
        opened.append(
            await PostgresRegistry.connect(
                dsn=address.application_dsn,
                approval_policy=ApprovalPolicy(pusher_may_approve=True),
                authoriser=authoriser(**options),
            )
        )
        return opened[-1]

    yield make
    for registry in opened:
        await registry.close()


def record_of(service: Service, signature: str | None = "b" * 64) -> ArtifactRecord:
    return ArtifactRecord(
        model=service.model,
        artifact_id="v41",
        manifest_uri="file:///v41",
        manifest_sha256="a" * 64,
        feature_schema="features-1",
        signature_sha256=signature,
    )


async def make_ready(registry: Registry, service: Service, signature: str | None = "b" * 64) -> None:
    await registry.register_artifact(record_of(service, signature), operator="ci")
    await registry.approve_artifact(service.model, "v41", operator="ada")


def publication_of(service: Service, **changes: Any) -> Publication:
    values = {
        "service": service,
        "cohort": Cohort.CANARY,
        "artifact_id": "v41",
        "fence": Fence(epoch=1, sequence=1),
        "operation_id": secrets.token_hex(8),
        "release_id": "R1",
        "operator": "ada",
    }
    return Publication.model_validate(values | changes)


async def test_every_published_target_is_authorised(signing_registry: Any, service: Service) -> None:
    registry = await signing_registry()
    await make_ready(registry, service)
    first = await registry.publish(publication_of(service))
    second = await registry.publish(publication_of(service, raise_serve_floor=True, requires_grant=True))
    assert (await registry.targets(service)).canary == second
    for target, previous in ((first, 0), (second, 1)):
        authorisation = verify_authorisation(target, keys=KEYS, now=datetime.now(UTC))
        assert authorisation.previous_revision == previous
        assert authorisation.signature_sha256 == "b" * 64


async def test_a_repeat_returns_the_first_authorisation(signing_registry: Any, service: Service) -> None:
    registry = await signing_registry()
    await make_ready(registry, service)
    publication = publication_of(service)
    assert await registry.publish(publication) == await registry.publish(publication)


async def test_an_unsigned_artifact_is_neither_admitted_nor_published(
    signing_registry: Any, service: Service
) -> None:
    registry = await signing_registry()
    await make_ready(registry, service, signature=None)
    request = ReleaseRequest(
        release_id=secrets.token_hex(8),
        service=service,
        artifact_id="v41",
        plan=Plan.model_validate({"stages": [100]}),
        operator="ada",
    )
    with pytest.raises(ArtifactNotReady, match="unsigned"):
        await registry.admit(Admission(request=request, run_id="run"))
    with pytest.raises(ArtifactNotReady, match="unsigned"):
        await registry.publish(publication_of(service))
    assert await registry.audit(service) == ()


async def test_a_signature_can_be_added_and_replaced_for_the_same_content(
    signing_registry: Any, service: Service
) -> None:
    registry = await signing_registry()
    await make_ready(registry, service, signature=None)
    for signature in ("b" * 64, "c" * 64, "c" * 64):
        record = await registry.register_artifact(record_of(service, signature), operator="ci")
        assert record.signature_sha256 == signature
        assert record.state == "ready"
    assert await registry.register_artifact(record_of(service, None), operator="ci") == record
    assert await registry.artifact(service.model, "v41") == record
    target = await registry.publish(publication_of(service))
    assert verify_authorisation(target, keys=KEYS).signature_sha256 == "c" * 64
    rows = await registry.audit(Service(model=service.model, environment=ARTIFACT_ENVIRONMENT))
    assert [row.step for row in rows].count("artifact-signed") == 2


async def test_an_old_authorisation_is_renewed_when_it_is_read(
    signing_registry: Any, service: Service
) -> None:
    registry = await signing_registry(validity=timedelta(0))
    await make_ready(registry, service)
    published = await registry.publish(publication_of(service))
    read = (await registry.targets(service)).canary
    assert read.authorisation != published.authorisation
    before = verify_authorisation(published, keys=KEYS)
    after = verify_authorisation(read, keys=KEYS)
    assert after.not_after > before.not_after
    assert read.model_copy(update={"authorisation": published.authorisation}) == published


async def test_a_target_altered_in_the_database_is_not_signed_again(
    database: PostgresAddress, owner: Any, service: Service
) -> None:
    registry = await PostgresRegistry.connect(
        dsn=database.application_dsn, authoriser=authoriser(timedelta(0))
    )
    try:
        await make_ready(registry, service)
        published = await registry.publish(publication_of(service, raise_serve_floor=True))
        await owner.execute(
            "UPDATE deployment_target SET serve_floor = 0 WHERE model_name = $1", service.model
        )
        read = (await registry.targets(service)).canary
        assert read is not None
        assert (read.serve_floor, read.authorisation) == (0, published.authorisation)
    finally:
        await registry.close()


async def test_without_a_key_targets_carry_no_authorisation(
    registry: Registry, service: Service, ready: Any
) -> None:
    await ready("v41")
    assert (await registry.publish(publication_of(service))).authorisation is None
