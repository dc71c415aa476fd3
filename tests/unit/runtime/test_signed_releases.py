"""An instance that demands signatures: what it loads, what it refuses, and what it says of it."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runtime.settings import RuntimeSettings
from runtime.signatures import SIGNATURES_KEPT, SignatureCache, SignaturePolicy, accepted_keys
from runtime.target_state import TargetState
from weightshift.artifacts.artifact_statement import sign_manifest
from weightshift.artifacts.base import signature_key
from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import CandidatePhase
from weightshift.contracts.manifest import ArtifactRecord, Manifest
from weightshift.contracts.target import Target
from weightshift.errors import AuthorisationInvalid, InvalidInput, RevisionConflict, SignatureInvalid

CI = SigningKey.generate(KeyRole.ARTIFACT)
REGISTRY = SigningKey.generate(KeyRole.RELEASE)
OTHER_CI = SigningKey.generate(KeyRole.ARTIFACT)
OTHER_REGISTRY = SigningKey.generate(KeyRole.RELEASE)
SIGNED: dict[str, Any] = {
    "insecure_unsigned": False,
    "artifact_keys": CI.public_pem().decode(),
    "release_keys": REGISTRY.public_pem().decode(),
}


def authoriser(key: SigningKey = REGISTRY) -> ReleaseAuthoriser:
    accepted = VerificationKeys.from_pem(key.public_pem(), role=KeyRole.RELEASE, source="test")
    return ReleaseAuthoriser(key=key, accepted=accepted, validity=timedelta(days=7))


@pytest.fixture
def world(make_world: Callable[..., Any]) -> Any:
    """A world whose registry has the release key that the instances accept."""
    return make_world(authoriser())


def sign(store: Any, manifest: Manifest, key: SigningKey = CI) -> str:
    bundle = sign_manifest(manifest, key)
    digest = hashlib.sha256(bundle).hexdigest()
    store.put_bytes(signature_key(manifest.model, digest), bundle)
    return digest


def authorised(target: Target, *, signature: str, at: datetime, key: SigningKey = REGISTRY) -> Target:
    record = ArtifactRecord(
        model=target.service.model,
        artifact_id=target.artifact_id,
        manifest_uri="",
        manifest_sha256=target.manifest_sha256,
        feature_schema=target.feature_schema,
        signature_sha256=signature,
    )
    dated = target.model_copy(update={"updated_at": at})
    return authoriser(key).authorise(dated, artifact=record, previous=None)


def refusal(instance: Any, revision: int) -> Callable[[], bool]:
    def is_refused() -> bool:
        progress = instance.report().candidate
        return progress is not None and progress.revision == revision and progress.error is not None

    return is_refused


async def test_a_signed_and_authorised_artifact_serves(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest, sign(world.store, manifest))
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
        assert not instance.report().insecure_unsigned


async def test_an_artifact_of_an_unknown_signer_is_refused_before_its_weights_are_read(
    world: Any, artifacts: Any
) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest, sign(world.store, manifest, OTHER_CI))
    async with world.running(**SIGNED) as instance:
        await world.until(refusal(instance, 1))
        error = instance.report().candidate.error
        assert (error.type, error.phase, error.permanent) == (
            "SignatureInvalid",
            CandidatePhase.VERIFYING,
            True,
        )
        assert not any("/blobs/" in key for key in world.store.read)


@pytest.mark.parametrize("fate", ["missing", "other bytes", "of another artifact"])
async def test_a_signature_that_is_not_this_artifacts_is_refused(
    world: Any, artifacts: Any, fate: str
) -> None:
    manifest = artifacts.push("v1")
    signature = sign(world.store, manifest)
    match fate:
        case "missing":
            del world.store.objects[signature_key("ranker", signature)]
        case "other bytes":
            world.store.objects[signature_key("ranker", signature)] += b" "
        case "of another artifact":
            signature = sign(world.store, artifacts.push("v2", seed=2))
    await world.publish(manifest, signature)
    async with world.running(**SIGNED) as instance:
        await world.until(refusal(instance, 1))
        assert instance.report().candidate.error.type == "SignatureInvalid"
        assert instance.holder.current is None


async def test_a_target_of_an_unknown_registry_is_reported_and_not_followed(
    make_world: Any, artifacts: Any
) -> None:
    world = make_world(authoriser(OTHER_REGISTRY))
    manifest = artifacts.push("v1")
    await world.publish(manifest, sign(world.store, manifest))
    async with world.running(**SIGNED) as instance:
        await world.until(refusal(instance, 1))
        report = instance.report()
        assert (report.candidate.error.type, report.candidate.error.permanent) == (
            "AuthorisationInvalid",
            True,
        )
        assert report.desired_revision == 0
        assert world.store.read == []
        assert b"weightshift_unauthorised_targets_total" in await instance.render_metrics()


async def test_a_forged_target_leaves_what_serves_alone(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    signature = sign(world.store, manifest)
    published = await world.publish(manifest, signature)
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
        forged = published.model_copy(update={"revision": 9})
        await instance._reconciler.accept(forged)
        assert instance.report().candidate.error.type == "AuthorisationInvalid"
        assert instance.report().desired_revision == 1
        await world.publish(manifest, signature)
        await world.until(world.serving(instance, 2))


async def test_a_restart_needs_neither_registry_nor_store_nor_date(
    world: Any, artifacts: Any, make_target: Any
) -> None:
    manifest = artifacts.push("v1")
    signature = sign(world.store, manifest)
    await world.publish(manifest, signature)
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
    long_ago = datetime.now(UTC) - timedelta(days=400)
    old = authorised(make_target(2, manifest), signature=signature, at=long_ago)
    state = TargetState(
        directory=world.root / "targets",
        service=Service(model="ranker", environment="test"),
        cohort=Cohort.STABLE,
        check=lambda _: None,
    )
    state.accept(old)
    state.trust(old)
    world.registry.available = False
    world.store.objects.clear()
    async with world.running(**SIGNED, start_wait=0.01) as instance:
        await world.until(world.serving(instance, 2))


async def test_after_a_restart_a_withdrawn_key_counts_for_nothing(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest, sign(world.store, manifest))
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
    rotated = SIGNED | {"artifact_keys": OTHER_CI.public_pem().decode()}
    async with world.running(**rotated) as instance:
        await world.until(refusal(instance, 1))
        assert instance.report().candidate.error.type == "SignatureInvalid"
        assert instance.holder.current is None


async def test_an_instance_that_starts_after_a_release_key_was_replaced_takes_the_renewed_target(
    world: Any, artifacts: Any
) -> None:
    manifest = artifacts.push("v1")
    published = await world.publish(manifest, sign(world.store, manifest))
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
    renewed = authorised(
        published, signature=sign(world.store, manifest), at=datetime.now(UTC), key=OTHER_REGISTRY
    )
    world.registry._targets[published.service, published.cohort] = renewed, Fence(epoch=0, sequence=1)
    rotated = SIGNED | {"release_keys": OTHER_REGISTRY.public_pem().decode()}
    async with world.running(**rotated) as instance:
        await world.until(world.serving(instance, 1))
    world.registry.available = False
    async with world.running(**rotated, start_wait=0.01) as instance:
        await world.until(world.serving(instance, 1))


@pytest.mark.parametrize("change", [{"authorisation": None}, {"serve_floor": 1}])
async def test_an_altered_copy_of_the_accepted_target_changes_nothing(
    world: Any, artifacts: Any, change: dict[str, Any]
) -> None:
    manifest = artifacts.push("v1")
    published = await world.publish(manifest, sign(world.store, manifest))
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
        await instance._reconciler.accept(published.model_copy(update=change))
        assert instance.report().candidate.error is None
        assert world.serving(instance, 1)()
    state = TargetState(
        directory=world.root / "targets",
        service=published.service,
        cohort=published.cohort,
        check=lambda _: None,
    )
    assert state.accepted == published


async def test_several_keys_are_accepted_while_one_replaces_the_other(world: Any, artifacts: Any) -> None:
    keys = SIGNED | {"artifact_keys": (CI.public_pem() + OTHER_CI.public_pem()).decode()}
    async with world.running(**keys) as instance:
        for revision, key in ((1, CI), (2, OTHER_CI)):
            manifest = artifacts.push(f"v{revision}", seed=revision)
            await world.publish(manifest, sign(world.store, manifest, key))
            await world.until(world.serving(instance, revision))


@pytest.mark.parametrize("unsigned", [True, False])
async def test_unsigned_artifacts_serve_only_where_the_settings_say_so(
    world: Any, make_world: Any, artifacts: Any, unsigned: bool
) -> None:
    unsigned_world = make_world(None)
    await unsigned_world.publish(artifacts.push("v1"))
    settings = {"insecure_unsigned": True} if unsigned else SIGNED
    async with unsigned_world.running(**settings) as instance:
        if unsigned:
            await unsigned_world.until(unsigned_world.serving(instance, 1))
            status = (await unsigned_world.admin_client(instance).get("/admin/status")).json()
            assert status["report"]["insecure_unsigned"] is True
        else:
            await unsigned_world.until(refusal(instance, 1))
            assert "missing" in instance.report().candidate.error.message


class TestReplay:
    """A valid authorisation of an older release, used again."""

    @pytest.fixture
    def policy(self, world: Any) -> Callable[[datetime], SignaturePolicy]:
        settings = RuntimeSettings(
            model="ranker", environment="test", cohort=Cohort.STABLE, instance_id="a", admin_token="12345678",
            **SIGNED,
        )  # fmt: skip
        signatures = SignatureCache(directory=world.root / "signatures", store=world.store)
        accepted = accepted_keys(settings)
        return lambda now: SignaturePolicy(accepted=accepted, signatures=signatures, clock=lambda: now)

    def test_after_its_last_day_a_new_instance_refuses_it(self, policy: Any, make_target: Any) -> None:
        now = datetime.now(UTC)
        target = authorised(make_target(1), signature="b" * 64, at=now)
        policy(now).check_new_target(target)
        with pytest.raises(AuthorisationInvalid, match="holds from"):
            policy(now + timedelta(days=8)).check_new_target(target)

    def test_before_that_an_instance_that_has_seen_a_newer_one_refuses_it(
        self, world: Any, policy: Any, make_target: Any
    ) -> None:
        now = datetime.now(UTC)
        state = TargetState(
            directory=world.root / "targets",
            service=Service(model="ranker", environment="test"),
            cohort=Cohort.STABLE,
            check=policy(now).check_new_target,
        )
        older, newer = (authorised(make_target(number), signature="b" * 64, at=now) for number in (1, 2))
        assert state.accept(older)
        assert state.accept(newer)
        with pytest.raises(RevisionConflict, match="older"):
            state.accept(older)

    def test_under_a_higher_revision_it_is_another_target(self, policy: Any, make_target: Any) -> None:
        now = datetime.now(UTC)
        target = authorised(make_target(1), signature="b" * 64, at=now)
        with pytest.raises(AuthorisationInvalid, match="another revision"):
            policy(now).check_new_target(target.model_copy(update={"revision": 5}))

    def test_a_manifest_that_is_not_the_authorised_one_is_refused(
        self, world: Any, policy: Any, artifacts: Any, make_target: Any
    ) -> None:
        first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
        now = datetime.now(UTC)
        target = authorised(make_target(1, first), signature=sign(world.store, first), at=now)
        with pytest.raises(SignatureInvalid, match="not the authorised one"):
            policy(now).check_artifact(target, second)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"artifact_keys": ""}, "artifact_keys"),
        ({"release_keys": ""}, "release_keys"),
        ({"insecure_unsigned": True}, "insecure_unsigned"),
        ({"artifact_keys": "no key"}, "artifact_keys"),
        ({"artifact_keys": SIGNED["release_keys"]}, "artifact_keys"),
    ],
)
async def test_settings_that_leave_it_open_what_is_demanded_end_the_start(
    world: Any, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        world.create(**(SIGNED | change))


def test_few_signatures_are_kept(world: Any) -> None:
    cache = SignatureCache(directory=world.root / "signatures", store=world.store)
    for number in range(SIGNATURES_KEPT + 5):
        content = str(number).encode()
        digest = hashlib.sha256(content).hexdigest()
        world.store.put_bytes(signature_key("ranker", digest), content)
        assert cache.fetch("ranker", digest) == content
    assert len(list((world.root / "signatures").iterdir())) == SIGNATURES_KEPT


def test_a_damaged_copy_is_fetched_again(world: Any) -> None:
    cache = SignatureCache(directory=world.root / "signatures", store=world.store)
    digest = hashlib.sha256(b"signature").hexdigest()
    world.store.put_bytes(signature_key("ranker", digest), b"signature")
    cache.fetch("ranker", digest)
    (world.root / "signatures" / digest).write_bytes(b"damaged")
    assert cache.fetch("ranker", digest) == b"signature"
