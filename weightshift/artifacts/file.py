"""Artifacts in a directory: one machine, or a file system that all of them mount."""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weightshift.artifacts.base import check_key
from weightshift.artifacts.files import open_file
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, UnknownArtifact

_CHUNK_BYTES = 1 << 20


class FileObjectStore:
    """An `ObjectStore` below `root`. An object appears whole, and on the disk, or not at all."""

    def __init__(self, *, root: Path) -> None:
        self._root = root

    def uri(self, key: str) -> str:
        """Return a readable address of a key."""
        return self._path(key).absolute().as_uri()

    def exists(self, key: str) -> bool:
        """Whether the key holds an object."""
        with _reachable():
            return self._path(key).is_file()

    def put_bytes(self, key: str, content: bytes) -> None:
        """Store a small object; an existing one is left alone."""
        if not self.exists(key):
            self._write(key, [content], sha256=None)

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        sha256: str | None = None,
    ) -> None:
        """Store a file's content. Raises `DigestMismatch` when it is not `sha256`, and stores nothing."""
        if not self.exists(key):
            self._write(key, _chunks(path, progress), sha256=sha256)

    def stream(
        self, key: str, *, chunk_bytes: int = _CHUNK_BYTES, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        """Yield an object's bytes from `offset`. Raises `UnknownArtifact` when there is none."""
        with _reachable():
            try:
                file = self._path(key).open("rb", buffering=0)
            except FileNotFoundError as error:
                # A share that is not mounted has lost no artifact.
                self._root.stat()
                raise UnknownArtifact(f"The store holds no {key}; push the artifact again.") from error
            with file:
                file.seek(offset)
                left = os.fstat(file.fileno()).st_size if length is None else length
                while left > 0 and (chunk := file.read(min(chunk_bytes, left))):
                    left -= len(chunk)
                    yield chunk

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _write(self, key: str, chunks: Iterable[bytes], *, sha256: str | None) -> None:
        final = self._path(key)
        with _reachable():
            final.parent.mkdir(parents=True, exist_ok=True)
            partial = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
            try:
                digest = _write_synced(partial, chunks)
                if sha256 not in (None, digest):
                    raise DigestMismatch(f"The file for {key} changed since it was hashed; build it again.")
                partial.rename(final)
                _sync_directories(final.parent, up_to=self._root)
            finally:
                with suppress(FileNotFoundError):
                    partial.unlink()


def _chunks(path: Path, progress: Callable[[int], None] | None) -> Iterator[bytes]:
    with open_file(path.parent, path.name) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
            if progress:
                progress(len(chunk))


def _write_synced(path: Path, chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for chunk in chunks:
            digest.update(chunk)
            remaining = memoryview(chunk)
            while remaining:
                remaining = remaining[file.write(remaining) :]
        os.fsync(descriptor)
    return digest.hexdigest()


def _sync_directories(directory: Path, *, up_to: Path) -> None:
    """Make the new name durable, and the names of the directories that were made for it."""
    for folder in (directory, *directory.parents):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if folder == up_to:
            return


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ObjectStoreUnreachable(
            f"The artifact directory cannot be used ({error.strerror}); check WEIGHTSHIFT_STORE_URL."
        ) from error
