"""Key pairs as files: the private key for its owner only."""

import os
from dataclasses import dataclass
from pathlib import Path

from weightshift.artifacts.signing_keys import KeyRole, SigningKey
from weightshift.errors import InvalidInput


@dataclass(frozen=True)
class KeyFiles:
    """Where the two halves of a key pair are."""

    private: Path
    public: Path


def key_files(directory: Path, role: KeyRole) -> KeyFiles:
    """Return the names of a role's files in a directory."""
    return KeyFiles(private=directory / f"{role}-key.pem", public=directory / f"{role}-key.pub.pem")


def write_key_pair(key: SigningKey, directory: Path) -> KeyFiles:
    """Write both halves. Raises `InvalidInput` when there is a key already, `OSError`."""
    files = key_files(directory, key.role)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, content, mode in (
        (files.private, key.private_pem(), 0o600),
        (files.public, key.public_pem(), 0o644),
    ):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        except FileExistsError:
            raise InvalidInput(f"out: {path} is there already; choose another directory.") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return files
