"""Both statements: what they accept, and every way to bend one that is refused."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import rfc8785

from weightshift.artifacts.artifact_statement import MAX_BUNDLE_BYTES, sign_manifest, verify_bundle
from weightshift.artifacts.dsse import pre_authentication_encoding, sign_payload
from weightshift.artifacts.release_authorisation import (
    Authorisation,
    ReleaseAuthoriser,
    verify_authorisation,
)
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import ArtifactRecord, Manifest
from weightshift.contracts.target import Target
from weightshift.errors import AuthorisationInvalid, SignatureInvalid

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
VALIDITY = timedelta(days=7)
CI = SigningKey.generate(KeyRole.ARTIFACT)
REGISTRY = SigningKey.generate(KeyRole.RELEASE)
TARGET = Target(
    service=Service(model="ranker", environment="production"),
    cohort=Cohort.CANARY,
    revision=7,
    artifact_id="v41",
    manifest_sha256="a" * 64,
    feature_schema="features-1",
    serve_floor=3,
    updated_at=NOW,
)
ARTIFACT = ArtifactRecord(
    model="ranker",
    artifact_id="v41",
    manifest_uri="s3://bucket/manifest",
    manifest_sha256="a" * 64,
    feature_schema="features-1",
    signature_sha256="b" * 64,
)


def accepted(*keys: SigningKey) -> VerificationKeys:
    pem = b"".join(key.public_pem() for key in keys)
    return VerificationKeys.from_pem(pem, role=keys[0].role, source="test")


def authoriser(key: SigningKey = REGISTRY, *earlier: SigningKey) -> ReleaseAuthoriser:
    return ReleaseAuthoriser(key=key, accepted=accepted(key, *earlier), validity=VALIDITY)


def authorised(target: Target = TARGET) -> Target:
    return authoriser().authorise(
        target, artifact=ARTIFACT, previous=TARGET.model_copy(update={"revision": 6})
    )


def test_the_encoding_is_that_of_the_specification() -> None:
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


class TestArtifact:
    def test_a_signed_manifest_is_accepted_whichever_accepted_key_signed_it(self, manifest: Manifest) -> None:
        other = SigningKey.generate(KeyRole.ARTIFACT)
        for keys in (accepted(CI), accepted(other, CI)):
            verify_bundle(sign_manifest(manifest, CI), manifest=manifest, keys=keys)

    def test_signing_again_gives_the_same_bytes(self, manifest: Manifest) -> None:
        assert sign_manifest(manifest, CI) == sign_manifest(manifest, CI)

    def test_a_key_that_is_not_accepted_any_more_counts_for_nothing(self, manifest: Manifest) -> None:
        keys = accepted(SigningKey.generate(KeyRole.ARTIFACT))
        with pytest.raises(SignatureInvalid, match="none of the accepted artifact keys"):
            verify_bundle(sign_manifest(manifest, CI), manifest=manifest, keys=keys)

    @pytest.mark.parametrize(
        "change",
        [
            {"artifact_id": "v42"},
            {"model": "other"},
            {"feature_schema": "features-2"},
            {"architecture": "other"},
            {"labels": {"team": "other"}},
        ],
    )
    def test_a_signature_is_for_one_manifest_only(self, manifest: Manifest, change: dict[str, Any]) -> None:
        bundle = sign_manifest(manifest.model_copy(update=change), CI)
        with pytest.raises(SignatureInvalid, match="other content"):
            verify_bundle(bundle, manifest=manifest, keys=accepted(CI))

    def test_every_byte_of_a_signature_counts(self, manifest: Manifest) -> None:
        bundle = sign_manifest(manifest, CI)
        signature = json.loads(bundle)["dsseEnvelope"]["signatures"][0]["sig"].encode()
        start = bundle.index(signature)
        payload = bundle.index(b'"payload":"') + len(b'"payload":"')
        for position in (start + 10, payload + 10, payload + 200):
            changed = bytearray(bundle)
            changed[position] = ord("A") if changed[position] != ord("A") else ord("B")
            with pytest.raises(SignatureInvalid):
                verify_bundle(bytes(changed), manifest=manifest, keys=accepted(CI))

    @pytest.mark.parametrize(
        "bend",
        [
            lambda document: document.update(extra=1),
            lambda document: document.update(mediaType="application/json"),
            lambda document: document.pop("verificationMaterial"),
            lambda document: document["dsseEnvelope"].update(extra=1),
            lambda document: document["dsseEnvelope"].update(payloadType="text/plain"),
            lambda document: document["dsseEnvelope"].update(payload="not base64!"),
            lambda document: document["dsseEnvelope"].update(signatures=[]),
            lambda document: document["dsseEnvelope"]["signatures"].append({"sig": ""}),
            lambda document: document["dsseEnvelope"]["signatures"][0].update(extra=1),
        ],
    )
    def test_a_bundle_of_another_form_is_refused(
        self, manifest: Manifest, bend: Callable[[Any], None]
    ) -> None:
        document = json.loads(sign_manifest(manifest, CI))
        bend(document)
        with pytest.raises(SignatureInvalid):
            verify_bundle(rfc8785.dumps(document), manifest=manifest, keys=accepted(CI))

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"[]",
            b"\xff",
            b'{"mediaType":"a","mediaType":"b"}',
            b"[" * 100_000,
            b" " * (MAX_BUNDLE_BYTES + 1),
        ],
        ids=["empty", "a list", "no UTF-8", "a key twice", "deep", "too large"],
    )
    def test_what_is_no_strict_json_is_refused(self, manifest: Manifest, content: bytes) -> None:
        with pytest.raises(SignatureInvalid, match="push the artifact again"):
            verify_bundle(content, manifest=manifest, keys=accepted(CI))

    def test_the_hint_chooses_no_key(self, manifest: Manifest) -> None:
        document = json.loads(sign_manifest(manifest, CI))
        document["verificationMaterial"]["publicKey"]["hint"] = "another key"
        verify_bundle(rfc8785.dumps(document), manifest=manifest, keys=accepted(CI))


class TestRelease:
    def test_an_authorised_target_is_accepted(self) -> None:
        authorisation = verify_authorisation(authorised(), keys=accepted(REGISTRY), now=NOW)
        assert (authorisation.previous_revision, authorisation.signature_sha256) == (6, "b" * 64)

    def test_a_target_without_one_is_refused(self) -> None:
        with pytest.raises(AuthorisationInvalid, match="revision 7 is missing"):
            verify_authorisation(TARGET, keys=accepted(REGISTRY), now=NOW)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("service", Service(model="other", environment="production")),
            ("service", Service(model="ranker", environment="staging")),
            ("cohort", Cohort.STABLE),
            ("revision", 8),
            ("serve_floor", 0),
            ("artifact_id", "v42"),
            ("manifest_sha256", "c" * 64),
            ("feature_schema", "features-2"),
            ("requires_grant", True),
        ],
    )
    def test_an_authorisation_is_for_one_target_only(self, field: str, value: object) -> None:
        target = authorised().model_copy(update={field: value})
        with pytest.raises(AuthorisationInvalid, match="given for another"):
            verify_authorisation(target, keys=accepted(REGISTRY), now=NOW)

    @pytest.mark.parametrize("days", [-1, 8])
    def test_its_dates_count_at_the_first_acceptance_only(self, days: int) -> None:
        target = authorised()
        with pytest.raises(AuthorisationInvalid, match=r"from 2026-03-01 11:55 to 2026-03-08 12:00"):
            verify_authorisation(target, keys=accepted(REGISTRY), now=NOW + timedelta(days=days))
        verify_authorisation(target, keys=accepted(REGISTRY))

    def test_a_clock_that_is_a_little_behind_is_tolerated(self) -> None:
        now = NOW - timedelta(minutes=4)
        verify_authorisation(authorised(), keys=accepted(REGISTRY), now=now)

    def test_a_key_that_is_not_accepted_any_more_counts_for_nothing(self) -> None:
        with pytest.raises(AuthorisationInvalid, match="none of the accepted release keys"):
            verify_authorisation(authorised(), keys=accepted(SigningKey.generate(KeyRole.RELEASE)), now=NOW)

    def test_an_artifact_signature_is_no_authorisation(self, manifest: Manifest) -> None:
        envelope = json.loads(sign_manifest(manifest, CI))["dsseEnvelope"]
        target = TARGET.model_copy(update={"authorisation": json.dumps(envelope)})
        with pytest.raises(AuthorisationInvalid, match="not of type"):
            verify_authorisation(target, keys=accepted(REGISTRY), now=NOW)

    @pytest.mark.parametrize(
        "change", [{"extra": 1}, {"type": "other"}, {"not_after": "2026-03-01T12:00:00"}]
    )
    def test_a_signed_statement_of_an_unknown_form_is_refused(self, change: dict[str, Any]) -> None:
        payload = base64.b64decode(json.loads(authorised().authorisation or "")["payload"])
        document = rfc8785.dumps(json.loads(payload) | change)
        kind = "application/vnd.weightshift.release-authorisation+json"
        envelope = sign_payload(kind, document, REGISTRY).to_document()
        target = TARGET.model_copy(update={"authorisation": json.dumps(envelope)})
        with pytest.raises(AuthorisationInvalid, match="unknown form"):
            verify_authorisation(target, keys=accepted(REGISTRY), now=NOW)

    def test_a_signed_statement_with_a_key_twice_is_refused(self) -> None:
        kind = "application/vnd.weightshift.release-authorisation+json"
        envelope = sign_payload(kind, b'{"revision":7,"revision":8}', REGISTRY).to_document()
        target = TARGET.model_copy(update={"authorisation": json.dumps(envelope)})
        with pytest.raises(AuthorisationInvalid, match="twice"):
            verify_authorisation(target, keys=accepted(REGISTRY), now=NOW)

    def test_an_authorisation_is_renewed_after_half_its_validity(self) -> None:
        target = authorised()
        assert authoriser().renew(target, now=NOW + timedelta(days=3)) == target
        later = NOW + timedelta(days=60)
        renewed = authoriser().renew(target, now=later)
        before = verify_authorisation(target, keys=accepted(REGISTRY))
        after = verify_authorisation(renewed, keys=accepted(REGISTRY), now=later)
        dates = {"not_before", "not_after"}
        assert after.model_dump(exclude=dates) == before.model_dump(exclude=dates)

    @pytest.mark.parametrize("change", [{"artifact_id": "v42"}, {"authorisation": None}])
    def test_an_altered_target_is_not_renewed(self, change: dict[str, Any]) -> None:
        altered = authorised().model_copy(update=change)
        assert authoriser().renew(altered, now=NOW + timedelta(days=60)) == altered

    def test_a_renewal_moves_a_target_to_the_new_key(self) -> None:
        new = SigningKey.generate(KeyRole.RELEASE)
        later = NOW + timedelta(days=6)
        renewed = authoriser(new, REGISTRY).renew(authorised(), now=later)
        verify_authorisation(renewed, keys=accepted(new), now=later)

    def test_everything_about_the_target_is_bound(self) -> None:
        unbound = set(Target.model_fields) - set(Authorisation.model_fields)
        assert unbound == {"service", "updated_at", "authorisation"}
