"""The seam to an object store, and the content-addressed layout inside it."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from weightshift.errors import DigestMismatch, InvalidInput, UnsafeArtifact

_SEGMENT = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,7}}\Z")


def manifest_key(model: str, digest: str) -> str:
    """Key of a manifest: by its own digest, so that a stored object never changes."""
    return f"models/{model}/manifests/{digest}.json"


def blob_key(model: str, digest: str) -> str:
    """Key of one file's bytes, by their SHA-256."""
    return f"models/{model}/blobs/{digest}"


def signature_key(model: str, digest: str) -> str:
    """Key of an artifact's signature, by its own digest."""
    return f"models/{model}/signatures/{digest}.json"


def check_key(key: str) -> str:
    """Return a key that stays below its store's root. Raises `InvalidInput`."""
    if not _KEY.match(key):
        raise InvalidInput("An object key is 1 to 8 segments of [A-Za-z0-9._-], none starting with a dot.")
    return key


class ObjectStore(Protocol):
    """Blocking reads and writes of immutable objects. Raises `ObjectStoreUnreachable`."""

    def uri(self, key: str) -> str:
        """Return a readable address of a key, for people and records only."""

    def exists(self, key: str) -> bool:
        """Whether the key holds an object."""

    def put_bytes(self, key: str, content: bytes) -> None:
        """Store a small object; an existing one is left alone (keys are content-addressed)."""

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        sha256: str | None = None,
    ) -> None:
        """Store a file's content; `progress` gets the bytes sent by each part, from any thread.

        Raises `DigestMismatch` when the content is not `sha256`, and then stores nothing.
        """

    def stream(
        self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        """Yield an object's bytes from `offset`, at most `length` of them; fewer when it ends earlier.

        Raises `UnknownArtifact` when there is none.
        """


def read_object(store: ObjectStore, key: str, *, sha256: str, max_bytes: int) -> bytes:
    """Return a small object, whose digest is checked before anybody looks at it.

    Raises `UnknownArtifact`, `UnsafeArtifact` for one that is larger, `DigestMismatch`,
    `ObjectStoreUnreachable`.
    """
    content = bytearray()
    for chunk in store.stream(key):
        content += chunk
        if len(content) > max_bytes:
            raise UnsafeArtifact(f"The stored {key} is larger than {max_bytes} bytes; push smaller files.")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DigestMismatch(f"The stored {key} has other bytes; push the artifact again.")
    return bytes(content)
