"""Small files of the local stack: secrets and state, written whole or not at all."""

import os
import secrets
from pathlib import Path


def write_private(path: Path, content: str) -> None:
    """Replace a file atomically; only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    temporary.replace(path)


def secret(path: Path) -> str:
    """Return the secret kept in a file, made on first use."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()
