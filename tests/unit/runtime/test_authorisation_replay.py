"""What is signed is not believed again where it was not signed for; and how signatures are kept."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runtime.settings import RuntimeSettings
from runtime.signatures import SIGNATURES_KEPT, SignatureCache, SignaturePolicy, accepted_keys
from runtime.target_state import TargetState
from tests.unit.runtime.signing_harness import SIGNED, authorised, sign
from weightshift.artifacts.base import signature_key
from weightshift.contracts.identity import Cohort, Service
from weightshift.errors import AuthorisationInvalid, RevisionConflict, SignatureInvalid


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
