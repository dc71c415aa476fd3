from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import SecretStr

from weightshift.artifacts.configured_keys import artifact_signing_key, release_authoriser
from weightshift.artifacts.key_files import write_key_pair
from weightshift.artifacts.signing_keys import (
    MAX_ACCEPTED_KEYS,
    KeyRole,
    SigningKey,
    VerificationKeys,
    read_key,
)
from weightshift.errors import InvalidInput
from weightshift.settings import AuthorisationSettings, SigningSettings


def private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, password: bytes | None = None) -> bytes:
    protection = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


@pytest.mark.parametrize("role", KeyRole)
def test_a_key_survives_its_file(role: KeyRole) -> None:
    key = SigningKey.generate(role)
    again = SigningKey.from_pem(key.private_pem(), role=role, source="test")
    assert again.public_pem() == key.public_pem()
    keys = VerificationKeys.from_pem(key.public_pem(), role=role, source="test")
    assert keys.accept(b"message", again.sign(b"message"))
    assert not keys.accept(b"other", again.sign(b"message"))
    assert not keys.accept(b"message", b"")


@pytest.mark.parametrize("role", KeyRole)
def test_a_key_of_one_role_is_of_no_use_for_the_other(role: KeyRole) -> None:
    (other,) = set(KeyRole) - {role}
    key = SigningKey.generate(other)
    with pytest.raises(InvalidInput, match=f"role {role}"):
        SigningKey.from_pem(key.private_pem(), role=role, source="THE_VARIABLE")
    with pytest.raises(InvalidInput, match=f"THE_VARIABLE.*role {role}"):
        VerificationKeys.from_pem(key.public_pem(), role=role, source="THE_VARIABLE")


@pytest.mark.parametrize(
    "pem",
    [
        private_pem(ec.generate_private_key(ec.SECP384R1())),
        private_pem(rsa.generate_private_key(65537, 2048)),
        private_pem(ec.generate_private_key(ec.SECP256R1()), b"password"),
        SigningKey.generate(KeyRole.ARTIFACT).public_pem(),
        b"hunter2",
    ],
    ids=["another curve", "RSA", "encrypted", "public", "no key"],
)
def test_any_other_key_is_refused_without_repeating_it(pem: bytes) -> None:
    with pytest.raises(InvalidInput, match="THE_VARIABLE") as caught:
        SigningKey.from_pem(pem, role=KeyRole.ARTIFACT, source="THE_VARIABLE")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_several_keys_are_accepted_at_once_but_not_many() -> None:
    keys = [SigningKey.generate(KeyRole.RELEASE) for _ in range(MAX_ACCEPTED_KEYS + 1)]
    several = b"\n".join(key.public_pem() for key in keys[:3])
    accepted = VerificationKeys.from_pem(several, role=KeyRole.RELEASE, source="test")
    assert [accepted.accept(b"x", key.sign(b"x")) for key in keys[:4]] == [True, True, True, False]
    everything = b"".join(key.public_pem() for key in keys)
    with pytest.raises(InvalidInput, match=f"1 to {MAX_ACCEPTED_KEYS}"):
        VerificationKeys.from_pem(everything, role=KeyRole.RELEASE, source="test")


def test_what_stands_between_the_keys_is_not_skipped() -> None:
    key = SigningKey.generate(KeyRole.RELEASE)
    for pem in (b"", key.private_pem(), key.public_pem() + b"and more", key.public_pem() + key.private_pem()):
        with pytest.raises(InvalidInput):
            VerificationKeys.from_pem(pem, role=KeyRole.RELEASE, source="test")


def test_a_key_comes_from_a_variable_or_a_file_but_not_from_both(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"from the file")
    assert read_key(SecretStr(""), path, variable="KEY") == b"from the file"
    assert read_key(SecretStr("inline"), None, variable="KEY") == b"inline"
    assert read_key("", None, variable="KEY") == b""
    with pytest.raises(InvalidInput, match="both set"):
        read_key("inline", path, variable="KEY")
    with pytest.raises(InvalidInput, match="KEY_FILE"):
        read_key("", tmp_path / "missing", variable="KEY")
    path.write_bytes(b"x" * 100_000)
    with pytest.raises(InvalidInput, match="larger"):
        read_key("", path, variable="KEY")


def test_ci_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="WEIGHTSHIFT_SIGNING_KEY_FILE"):
        artifact_signing_key(SigningSettings())
    key = SigningKey.generate(KeyRole.ARTIFACT)
    path = write_key_pair(key, tmp_path).private
    assert artifact_signing_key(SigningSettings(key_file=path)).fingerprint == key.fingerprint


def test_a_registry_signs_or_says_that_it_does_not() -> None:
    pem = SecretStr(SigningKey.generate(KeyRole.RELEASE).private_pem().decode())
    assert release_authoriser(AuthorisationSettings(key=pem)) is not None
    assert release_authoriser(AuthorisationSettings(insecure_unsigned=True)) is None
    for settings in (AuthorisationSettings(), AuthorisationSettings(key=pem, insecure_unsigned=True)):
        with pytest.raises(InvalidInput, match="WEIGHTSHIFT_AUTHORISATION_KEY_FILE"):
            release_authoriser(settings)


def test_settings_never_print_a_key() -> None:
    pem = SigningKey.generate(KeyRole.RELEASE).private_pem().decode()
    printed = repr(AuthorisationSettings(key=SecretStr(pem))) + repr(SigningSettings(key=SecretStr(pem)))
    assert pem.splitlines()[1] not in printed
