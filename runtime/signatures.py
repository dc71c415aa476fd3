"""What an instance demands before it loads anything: who signed the artifact, who authorised the target."""

import hashlib
import logging
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from runtime.settings import RuntimeSettings
from weightshift.artifacts.artifact_statement import MAX_BUNDLE_BYTES, verify_bundle
from weightshift.artifacts.base import ObjectStore, read_object, signature_key
from weightshift.artifacts.release_authorisation import verify_authorisation
from weightshift.artifacts.signing_keys import KeyRole, VerificationKeys, read_key
from weightshift.contracts.manifest import Manifest
from weightshift.contracts.target import Target
from weightshift.errors import DigestMismatch, InvalidInput, SignatureInvalid, UnknownArtifact, UnsafeArtifact

SIGNATURES_KEPT = 32
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AcceptedKeys:
    """The public keys this instance believes, by role."""

    artifact: VerificationKeys
    release: VerificationKeys


def accepted_keys(settings: RuntimeSettings) -> AcceptedKeys | None:
    """Return the accepted keys; None where the settings allow unsigned artifacts.

    Raises `InvalidInput` when the settings give neither, or both.
    """
    artifact = read_key(
        settings.artifact_keys, settings.artifact_keys_file, variable="WEIGHTSHIFT_RUNTIME_ARTIFACT_KEYS"
    )
    release = read_key(
        settings.release_keys, settings.release_keys_file, variable="WEIGHTSHIFT_RUNTIME_RELEASE_KEYS"
    )
    if settings.insecure_unsigned:
        if artifact or release:
            raise InvalidInput("insecure_unsigned is set beside accepted keys; remove one of them.")
        return None
    if not (artifact and release):
        raise InvalidInput(
            "artifact_keys or release_keys is missing; set WEIGHTSHIFT_RUNTIME_ARTIFACT_KEYS_FILE and "
            "WEIGHTSHIFT_RUNTIME_RELEASE_KEYS_FILE to the accepted public keys."
        )
    return AcceptedKeys(
        artifact=VerificationKeys.from_pem(artifact, role=KeyRole.ARTIFACT, source="artifact_keys"),
        release=VerificationKeys.from_pem(release, role=KeyRole.RELEASE, source="release_keys"),
    )


class SignatureCache:
    """Artifacts' signatures below `directory`, by their digest; blocking, for worker threads."""

    def __init__(self, *, directory: Path, store: ObjectStore) -> None:
        self._directory = directory
        self._store = store
        directory.mkdir(parents=True, exist_ok=True)

    def fetch(self, model: str, digest: str) -> bytes:
        """Return a signature, from the store if it is not here.

        Raises `SignatureInvalid` when the store has none or another, `ObjectStoreUnreachable`.
        """
        path = self._directory / digest
        content = b""
        with suppress(OSError):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == digest:
            # A disk that has turned read-only must not stop a rollback to what is on it.
            with suppress(OSError):
                os.utime(path)
            return content
        key = signature_key(model, digest)
        try:
            content = read_object(self._store, key, sha256=digest, max_bytes=MAX_BUNDLE_BYTES)
        except (UnknownArtifact, UnsafeArtifact, DigestMismatch) as error:
            raise SignatureInvalid(f"The artifact's signature cannot be used. {error}") from error
        try:
            self._keep(path, content)
        except OSError as error:
            _logger.warning("a signature could not be kept: %s", error.strerror)
        return content

    def _keep(self, path: Path, content: bytes) -> None:
        # Not synced: a signature that a power cut damages has another digest and is fetched again.
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
        temporary.write_bytes(content)
        temporary.rename(path)
        entries = sorted(self._directory.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for old in entries[SIGNATURES_KEPT:]:
            old.unlink(missing_ok=True)


class SignaturePolicy:
    """Checks targets and artifacts against the accepted keys; without keys it lets everything through."""

    def __init__(
        self,
        *,
        accepted: AcceptedKeys | None,
        signatures: SignatureCache,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._accepted = accepted
        self._signatures = signatures
        self._clock = clock

    @property
    def allows_unsigned(self) -> bool:
        """Whether nothing is checked here."""
        return self._accepted is None

    def check_new_target(self, target: Target) -> None:
        """Check a target that is seen for the first time, dates included. Raises `AuthorisationInvalid`."""
        if self._accepted is not None:
            verify_authorisation(target, keys=self._accepted.release, now=self._clock())

    def check_artifact(self, target: Target, manifest: Manifest) -> None:
        """Check the target's authorisation again, and the signature of the artifact that it names.

        Raises `AuthorisationInvalid`, `SignatureInvalid`, `ObjectStoreUnreachable`.
        """
        if self._accepted is None:
            return
        authorisation = verify_authorisation(target, keys=self._accepted.release)
        bundle = self._signatures.fetch(target.service.model, authorisation.signature_sha256)
        if manifest.digest() != authorisation.manifest_sha256:
            raise SignatureInvalid("The manifest is not the authorised one; publish the release again.")
        verify_bundle(bundle, manifest=manifest, keys=self._accepted.artifact)
