"""Statement A: CI says that these files are this artifact.

An OpenSSF model signature (in-toto statement, P-256, Sigstore bundle v0.3) that the public
`model-signing` package verifies over the pushed directory. What that format lacks is added where its
verifiers look past it: the size of every file, and the manifest's digest, which binds everything else.
"""

import hashlib
from typing import Any

import rfc8785

from weightshift.artifacts.dsse import read_envelope, sign_payload, verified_payload
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.artifacts.strict_json import parse_strict
from weightshift.contracts.manifest import Manifest
from weightshift.errors import SignatureInvalid

MAX_BUNDLE_BYTES = 4 << 20

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"


def sign_manifest(manifest: Manifest, key: SigningKey) -> bytes:
    """Return the bundle to store beside an artifact; the same artifact and key give the same bytes."""
    assert key.role is KeyRole.ARTIFACT  # noqa: S101 - a release key here is a mistake of ours
    envelope = sign_payload(_PAYLOAD_TYPE, _statement(manifest), key)
    return rfc8785.dumps(
        {
            "mediaType": _MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": key.fingerprint}, "tlogEntries": []},
            "dsseEnvelope": envelope.to_document(),
        }
    )


def verify_bundle(content: bytes, *, manifest: Manifest, keys: VerificationKeys) -> None:
    """Check that an accepted key has signed exactly this manifest. Raises `SignatureInvalid`.

    The statement is a function of the manifest, so the signed bytes are compared and never parsed.
    """
    name = f"The signature of artifact {manifest.artifact_id}"
    try:
        payload = _signed_payload(content, keys)
    except ValueError as error:
        raise SignatureInvalid(f"{name} is not valid: {error}; push the artifact again.") from None
    if payload != _statement(manifest):
        raise SignatureInvalid(f"{name} is over other content; push the artifact again.")


def _signed_payload(content: bytes, keys: VerificationKeys) -> bytes:
    if len(content) > MAX_BUNDLE_BYTES:
        raise ValueError(f"it is larger than {MAX_BUNDLE_BYTES} bytes")
    match parse_strict(content):
        case {"mediaType": str(media_type), "verificationMaterial": dict(), "dsseEnvelope": envelope, **rest}:
            if media_type == _MEDIA_TYPE and not rest:
                return verified_payload(read_envelope(envelope), payload_type=_PAYLOAD_TYPE, keys=keys)
    raise ValueError("it is not a Sigstore bundle v0.3 with a DSSE envelope")


def _statement(manifest: Manifest) -> bytes:
    files = sorted(manifest.files, key=lambda file: file.path)
    root = hashlib.sha256(b"".join(bytes.fromhex(file.sha256) for file in files)).hexdigest()
    predicate: dict[str, Any] = {
        "serialization": {
            "method": "files",
            "hash_type": "sha256",
            "allow_symlinks": False,
            "ignore_paths": [],
        },
        "resources": [
            {"name": file.path, "algorithm": "sha256", "digest": file.sha256, "size": file.bytes}
            for file in files
        ],
        "weightshift": {
            "model": manifest.model,
            "artifact_id": manifest.artifact_id,
            "manifest_sha256": manifest.digest(),
        },
    }
    return rfc8785.dumps(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": manifest.artifact_id, "digest": {"sha256": root}}],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": predicate,
        }
    )
