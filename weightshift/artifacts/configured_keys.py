"""The private keys that the settings name, for whoever signs."""

from datetime import timedelta

from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys, read_key
from weightshift.errors import InvalidInput
from weightshift.settings import AuthorisationSettings, SigningSettings


def artifact_signing_key(settings: SigningSettings) -> SigningKey:
    """Return the key that artifacts are signed with. Raises `InvalidInput` when there is none."""
    pem = read_key(settings.key, settings.key_file, variable="WEIGHTSHIFT_SIGNING_KEY")
    if not pem:
        raise InvalidInput(
            "signing_key_file: set WEIGHTSHIFT_SIGNING_KEY_FILE to the private key of CI, or give "
            "--insecure-unsigned on a development environment."
        )
    return SigningKey.from_pem(pem, role=KeyRole.ARTIFACT, source="WEIGHTSHIFT_SIGNING_KEY")


def release_authoriser(settings: AuthorisationSettings) -> ReleaseAuthoriser | None:
    """Return what signs targets; None where the settings allow unsigned releases.

    Raises `InvalidInput` when the settings give neither a key nor that permission, or both.
    """
    pem = read_key(settings.key, settings.key_file, variable="WEIGHTSHIFT_AUTHORISATION_KEY")
    if bool(pem) == settings.insecure_unsigned:
        raise InvalidInput(
            "Set either WEIGHTSHIFT_AUTHORISATION_KEY_FILE to the registry's private key or, for "
            "development, WEIGHTSHIFT_AUTHORISATION_INSECURE_UNSIGNED=1."
        )
    if not pem:
        return None
    key = SigningKey.from_pem(pem, role=KeyRole.RELEASE, source="WEIGHTSHIFT_AUTHORISATION_KEY")
    earlier = read_key(
        settings.accepted_keys,
        settings.accepted_keys_file,
        variable="WEIGHTSHIFT_AUTHORISATION_ACCEPTED_KEYS",
    )
    accepted = VerificationKeys.from_pem(
        key.public_pem() + earlier, role=KeyRole.RELEASE, source="WEIGHTSHIFT_AUTHORISATION_ACCEPTED_KEYS"
    )
    return ReleaseAuthoriser(key=key, accepted=accepted, validity=timedelta(seconds=settings.validity))
