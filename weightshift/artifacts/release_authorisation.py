"""Statement B: the registry says that this cohort may serve this artifact at this revision.

Signed with Ed25519 in the transaction that publishes the target, and bound to the very bytes of
statement A. Its dates are checked when a target is accepted for the first time, so that an authorisation
kept aside cannot be played back later, while an instance that restarts serves on.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal

import orjson
import rfc8785
from pydantic import AwareDatetime, Field, ValidationError

from weightshift.artifacts.dsse import read_envelope, sign_payload, verified_payload
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.artifacts.strict_json import parse_strict
from weightshift.contracts.base import Digest, Document, Name
from weightshift.contracts.identity import Cohort
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.target import MAX_AUTHORISATION_CHARACTERS, Target
from weightshift.errors import AuthorisationInvalid

CLOCK_TOLERANCE = timedelta(minutes=5)
"""How far behind the registry's clock an instance's may be."""

_PAYLOAD_TYPE = "application/vnd.weightshift.release-authorisation+json"


class Authorisation(Document):
    """What one authorisation binds. `signature_sha256` is the digest of statement A's stored bundle."""

    type: Literal["weightshift/release-authorisation/v1"] = "weightshift/release-authorisation/v1"
    model: Name
    environment: Name
    cohort: Cohort
    revision: Annotated[int, Field(gt=0)]
    previous_revision: Annotated[int, Field(ge=0)]
    serve_floor: Annotated[int, Field(ge=0)]
    artifact_id: Name
    manifest_sha256: Digest
    signature_sha256: Digest
    feature_schema: Name
    requires_grant: bool
    not_before: AwareDatetime
    not_after: AwareDatetime

    def contradiction(self, target: Target) -> str | None:
        """Return the name of the first field that a target has otherwise."""
        bound = (
            ("model", self.model, target.service.model),
            ("environment", self.environment, target.service.environment),
            ("cohort", self.cohort, target.cohort),
            ("revision", self.revision, target.revision),
            ("serve_floor", self.serve_floor, target.serve_floor),
            ("artifact_id", self.artifact_id, target.artifact_id),
            ("manifest_sha256", self.manifest_sha256, target.manifest_sha256),
            ("feature_schema", self.feature_schema, target.feature_schema),
            ("requires_grant", self.requires_grant, target.requires_grant),
        )
        return next((name for name, signed, found in bound if signed != found), None)


class ReleaseAuthoriser:
    """Signs targets, and renews what it has signed. `accepted` are the keys a renewal believes."""

    def __init__(self, *, key: SigningKey, accepted: VerificationKeys, validity: timedelta) -> None:
        assert key.role is KeyRole.RELEASE  # noqa: S101 - an artifact key here is a mistake of ours
        self._key = key
        self._accepted = accepted
        self._validity = validity

    def authorise(self, target: Target, *, artifact: ArtifactRecord, previous: Target | None) -> Target:
        """Return a target of a signed artifact with its authorisation, valid from its `updated_at` on."""
        assert artifact.signature_sha256 is not None  # noqa: S101 - the registry's rules see to these two
        assert target.updated_at is not None  # noqa: S101
        authorisation = Authorisation(
            model=target.service.model,
            environment=target.service.environment,
            cohort=target.cohort,
            revision=target.revision,
            previous_revision=previous.revision if previous else 0,
            serve_floor=target.serve_floor,
            artifact_id=target.artifact_id,
            manifest_sha256=target.manifest_sha256,
            signature_sha256=artifact.signature_sha256,
            feature_schema=target.feature_schema,
            requires_grant=target.requires_grant,
            not_before=target.updated_at - CLOCK_TOLERANCE,
            not_after=target.updated_at + self._validity,
        )
        return self._signed(target, authorisation)

    def renew(self, target: Target, *, now: datetime) -> Target:
        """Return a current target with fresh dates once half its validity is over.

        Only what an accepted key has signed before is signed again, so that nobody gains anything by
        altering a stored target: such a one is returned as it is, for the runtimes to refuse.
        """
        # What was just published goes out to a whole fleet at once, and needs no second look.
        if target.updated_at is None or now < target.updated_at + self._validity / 2:
            return target
        try:
            authorisation = verify_authorisation(target, keys=self._accepted)
        except AuthorisationInvalid:
            return target
        dates = {"not_before": now - CLOCK_TOLERANCE, "not_after": now + self._validity}
        return self._signed(target, authorisation.model_copy(update=dates))

    def _signed(self, target: Target, authorisation: Authorisation) -> Target:
        payload = rfc8785.dumps(authorisation.model_dump(mode="json"))
        document = sign_payload(_PAYLOAD_TYPE, payload, self._key).to_document()
        return target.model_copy(update={"authorisation": orjson.dumps(document).decode()})


def verify_authorisation(
    target: Target, *, keys: VerificationKeys, now: datetime | None = None
) -> Authorisation:
    """Return what is authorised, once it is signed and says of the target what the target says itself.

    With `now` its dates count too. Raises `AuthorisationInvalid`.
    """
    name = f"The authorisation of revision {target.revision}"
    if target.authorisation is None:
        raise AuthorisationInvalid(f"{name} is missing; publish with a registry that has a release key.")
    try:
        authorisation = _read(target.authorisation, keys)
    except ValidationError:
        raise AuthorisationInvalid(f"{name} has an unknown form; compare the versions.") from None
    except ValueError as error:
        raise AuthorisationInvalid(f"{name} is not valid: {error}; publish the release again.") from None
    if (field := authorisation.contradiction(target)) is not None:
        raise AuthorisationInvalid(f"{name} was given for another {field}; publish the release again.")
    if now is not None and not authorisation.not_before <= now <= authorisation.not_after:
        raise AuthorisationInvalid(
            f"{name} holds from {authorisation.not_before:%Y-%m-%d %H:%M} to "
            f"{authorisation.not_after:%Y-%m-%d %H:%M} UTC only; publish the release again or set the clock."
        )
    return authorisation


def _read(text: str, keys: VerificationKeys) -> Authorisation:
    if len(text) > MAX_AUTHORISATION_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_AUTHORISATION_CHARACTERS} characters")
    envelope = read_envelope(parse_strict(text.encode()))
    payload = verified_payload(envelope, payload_type=_PAYLOAD_TYPE, keys=keys)
    return Authorisation.model_validate(parse_strict(payload))
