"""An instance that demands signatures: what it loads, what it refuses, and what it says of it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runtime.target_state import TargetState
from tests.unit.runtime.signing_harness import (
    CI,
    OTHER_CI,
    OTHER_REGISTRY,
    SIGNED,
    authorised,
    authoriser,
    sign,
)
from tests.unit.runtime.swap_harness import DryRuns
from weightshift.artifacts.base import signature_key
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import CandidatePhase
from weightshift.errors import InvalidInput


@pytest.fixture
def world(make_world: Callable[..., Any]) -> Any:
    """A world whose registry has the release key that the instances accept."""
    return make_world(authoriser())


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


async def test_a_forged_target_is_told_while_a_candidate_waits_for_its_wave(
    world: Any, artifacts: Any
) -> None:
    first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
    published = await world.publish(first, sign(world.store, first))
    async with world.running(**SIGNED) as instance:
        await world.until(world.serving(instance, 1))
        signature = sign(world.store, second)
        await world.publish(second, signature, requires_grant=True)

        def is_waiting() -> bool:
            progress = instance.report().candidate
            return (progress.revision, progress.phase) == (2, CandidatePhase.WAITING)

        await world.until(is_waiting)
        await instance._reconciler.accept(published.model_copy(update={"revision": 9}))
        await world.until(refusal(instance, 9))
        await world.publish(second, signature)
        await world.until(world.serving(instance, 3))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_forged_target_takes_no_place_of_a_candidate_that_is_loading(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    dry_runs = DryRuns(monkeypatch)
    dry_runs.arm()
    dry_runs.fails = fails
    manifest = artifacts.push("v1")
    published = await world.publish(manifest, sign(world.store, manifest))
    async with world.running(**SIGNED) as instance:
        await world.until(dry_runs.reached.is_set)
        await instance._reconciler.accept(published.model_copy(update={"revision": 9}))
        candidate = instance.report().candidate
        assert (candidate.revision, candidate.phase) == (1, CandidatePhase.DRY_RUNNING)
        dry_runs.gate.set()
        # It is told afterwards, and keeps the instance from nothing.
        await world.until(refusal(instance, 9))
        await world.until(lambda: instance._reconciler.is_settled)
        assert instance.is_ready is not fails


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
