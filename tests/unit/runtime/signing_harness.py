"""Keys, and what is signed with them, for tests of instances that demand signatures."""

import hashlib
from datetime import datetime, timedelta
from typing import Any

from weightshift.artifacts.artifact_statement import sign_manifest
from weightshift.artifacts.base import signature_key
from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.contracts.manifest import ArtifactRecord, Manifest
from weightshift.contracts.target import Target

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
