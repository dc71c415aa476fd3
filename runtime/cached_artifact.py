"""One complete artifact on disk, held open and locked while it is read."""

import errno
import fcntl
import hashlib
import os
import stat
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from weightshift.contracts.manifest import Manifest, ManifestFile
from weightshift.errors import DigestMismatch, UnsafeArtifact

MANIFEST = "manifest.json"
MARKER = "complete"
MAX_SMALL_FILE_BYTES = 16 << 20

# What disks and the checksums of file systems answer for bytes that are lost.
_LOST = {errno.EIO, errno.EBADMSG, errno.EUCLEAN}
# What opening answers for a link and for what is no file at all.
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}


class CachedArtifact:
    """A verified directory of the cache. Close it when done; until then it is not collected.

    `is_fresh` tells that this process has just downloaded and hashed it.
    """

    def __init__(self, *, digest: str, manifest: Manifest, descriptor: int) -> None:
        self.digest = digest
        self.manifest = manifest
        self.is_fresh = False
        self._descriptor = descriptor

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open and lock a directory named by its manifest's digest.

        Raises `FileNotFoundError` when there is none, `DigestMismatch` when it is not complete, or `OSError`.
        """
        descriptor = _open(directory, os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # While this waited for the lock, the directory may have been collected.
            if not os.path.samestat(os.fstat(descriptor), directory.stat()):
                raise FileNotFoundError
            manifest = _read_complete(descriptor, directory.name)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(digest=directory.name, manifest=manifest, descriptor=descriptor)

    def open_file(self, file: ManifestFile) -> int:
        """Open one file of the manifest and return its descriptor, to be closed by the caller.

        Raises `DigestMismatch` when it is missing, is not a plain file or has another size, or `OSError`.
        """
        try:
            descriptor = _open_regular(self._descriptor, file.sha256)
        except FileNotFoundError:
            raise DigestMismatch(f"{file.path} is missing from the cache.") from None
        if os.fstat(descriptor).st_size != file.bytes:
            os.close(descriptor)
            raise DigestMismatch(f"{file.path} does not have the {file.bytes} bytes of its manifest.")
        return descriptor

    def read_file(self, file: ManifestFile) -> bytes:
        """Read a small file, checked against its SHA-256.

        Raises `UnsafeArtifact` for a large one, and otherwise as `open_file`.
        """
        if file.bytes > MAX_SMALL_FILE_BYTES:
            raise UnsafeArtifact(f"{file.path} is larger than {MAX_SMALL_FILE_BYTES} bytes.")
        with os.fdopen(self.open_file(file), "rb") as source:
            content = source.read(MAX_SMALL_FILE_BYTES + 1)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise DigestMismatch(f"{file.path} does not have the SHA-256 of its manifest.")
        return content

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_damage(error: Exception) -> bool:
    """Whether an error tells that what is in the cache is wrong or lost, so that it has to be fetched anew.

    Want of descriptors, memory or permissions says nothing of what is there.
    """
    return isinstance(error, DigestMismatch) or is_lost(error)


def is_lost(error: Exception) -> bool:
    """Whether an error tells that a disk does not give back what was written to it."""
    return isinstance(error, OSError) and error.errno in _LOST


def marker_content(digest: str) -> bytes:
    """Return what the completion marker of a directory holds."""
    return f"{digest}\n".encode()


def _read_complete(directory: int, digest: str) -> Manifest:
    try:
        if _read(directory, MARKER) != marker_content(digest):
            raise DigestMismatch(f"The completion marker of cached manifest {digest} is corrupt.")
        content = _read(directory, MANIFEST)
        if hashlib.sha256(content).hexdigest() != digest:
            raise DigestMismatch(f"The cached manifest {digest} is corrupt.")
        return Manifest.model_validate_json(content)
    except FileNotFoundError:
        raise DigestMismatch(f"The cached manifest {digest} is incomplete.") from None
    except ValidationError:
        raise DigestMismatch(f"The cached manifest {digest} is not a manifest.") from None


def _read(directory: int, name: str) -> bytes:
    with os.fdopen(_open_regular(directory, name), "rb") as source:
        return source.read(MAX_SMALL_FILE_BYTES)


def _open_regular(directory: int, name: str) -> int:
    # Opening a pipe would wait for its other end.
    descriptor = _open(name, os.O_NONBLOCK, directory)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise DigestMismatch(f"{name} in the cache is not a plain file with one link.")
    return descriptor


def _open(path: Path | str, flags: int, directory: int | None = None) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=directory)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise DigestMismatch(f"{Path(path).name} in the cache is not what it should be.") from None
