"""Keys for the two signatures: made here, read from a file or a variable, and never printed.

A role has one kind of key, so that a key for one purpose is of no use for the other. Whoever verifies
accepts several public keys per role: a new one is added, then used, then the old one is removed.
"""

import hashlib
import re
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from pydantic import SecretStr

from weightshift.errors import InvalidInput

MAX_ACCEPTED_KEYS = 16
MAX_KEY_BYTES = 64 << 10

_PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_PUBLIC_BLOCK = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\n?", re.DOTALL)
# Deterministic: signing the same content again gives the same bytes, so a repeated push changes nothing.
_ECDSA = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)


class KeyRole(StrEnum):
    """What a key is for: CI signs artifacts (P-256), the registry authorises releases (Ed25519)."""

    ARTIFACT = "artifact"
    RELEASE = "release"


class SigningKey:
    """A private key of one role."""

    def __init__(self, *, role: KeyRole, private: _PrivateKey) -> None:
        self.role = role
        self._private = private

    @classmethod
    def generate(cls, role: KeyRole) -> "SigningKey":
        """Make a new key."""
        if role is KeyRole.ARTIFACT:
            return cls(role=role, private=ec.generate_private_key(ec.SECP256R1()))
        return cls(role=role, private=ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes, *, role: KeyRole, source: str) -> "SigningKey":
        """Read a key. Raises `InvalidInput` that names `source` and repeats nothing of the key."""
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError):
            private = None
        if isinstance(private, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) and _fits(
            private.public_key(), role
        ):
            return cls(role=role, private=private)
        raise InvalidInput(
            f"{source} is not an unencrypted private key for role {role}; "
            f"make one with `weightshift keys generate --role {role}`."
        )

    def sign(self, message: bytes) -> bytes:
        """Return the signature over a message."""
        if isinstance(self._private, ed25519.Ed25519PrivateKey):
            return self._private.sign(message)
        return self._private.sign(message, _ECDSA)

    def private_pem(self) -> bytes:
        """Return the key itself, to be written to its owner's file only."""
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def public_pem(self) -> bytes:
        """Return the public key, for whoever verifies."""
        return self._private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key's PEM: a name for it that people can compare."""
        return hashlib.sha256(self.public_pem()).hexdigest()


class VerificationKeys:
    """The public keys that are accepted for one role; which of them signed does not matter."""

    def __init__(self, *, role: KeyRole, public: tuple[_PublicKey, ...]) -> None:
        self.role = role
        self._public = public

    @classmethod
    def from_pem(cls, pem: bytes, *, role: KeyRole, source: str) -> "VerificationKeys":
        """Read one or several PEM blocks, one after the other. Raises `InvalidInput` naming `source`."""
        blocks = _PUBLIC_BLOCK.findall(pem)
        if not 1 <= len(blocks) <= MAX_ACCEPTED_KEYS or _PUBLIC_BLOCK.sub(b"", pem).strip():
            raise InvalidInput(
                f"{source} is not 1 to {MAX_ACCEPTED_KEYS} public keys in PEM form; "
                "put them there one after the other."
            )
        return cls(role=role, public=tuple(_public_key(block, role, source) for block in blocks))

    def accept(self, message: bytes, signature: bytes) -> bool:
        """Whether one of the keys has signed exactly this message."""
        return any(_verifies(key, message, signature) for key in self._public)


def read_key(value: str | SecretStr, file: Path | None, *, variable: str) -> bytes:
    """Return a PEM given in `variable` or in the file that `variable`_FILE names; empty when in neither.

    Raises `InvalidInput` when both are given, or the file cannot be read.
    """
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if text and file:
        raise InvalidInput(f"{variable} and {variable}_FILE are both set; set one of them.")
    if file is None:
        return text.encode()
    try:
        with file.open("rb") as source:
            content = source.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{variable}_FILE cannot be read ({error.strerror}); check {file}.") from error
    if not 0 < len(content) <= MAX_KEY_BYTES:
        raise InvalidInput(f"{variable}_FILE is empty or larger than {MAX_KEY_BYTES} bytes; check {file}.")
    return content


def _public_key(block: bytes, role: KeyRole, source: str) -> _PublicKey:
    try:
        public = serialization.load_pem_public_key(block)
    except (ValueError, TypeError):
        public = None
    if isinstance(public, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) and _fits(public, role):
        return public
    raise InvalidInput(f"{source} holds a key that is not for role {role}; remove it.")


def _fits(public: _PublicKey, role: KeyRole) -> bool:
    if isinstance(public, ed25519.Ed25519PublicKey):
        return role is KeyRole.RELEASE
    return role is KeyRole.ARTIFACT and isinstance(public.curve, ec.SECP256R1)


def _verifies(key: _PublicKey, message: bytes, signature: bytes) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, _ECDSA)
    except InvalidSignature:
        return False
    return True
