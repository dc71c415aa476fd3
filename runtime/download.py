"""Brings an artifact's bytes into a directory, checking size and SHA-256 while they are written."""

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from runtime.cached_artifact import MANIFEST, MARKER, MAX_SMALL_FILE_BYTES, marker_content
from weightshift.artifacts.base import ObjectStore, blob_key, read_object
from weightshift.artifacts.build import read_manifest
from weightshift.contracts.manifest import Manifest, ManifestFile
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, UnsafeArtifact

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total; may raise to stop a download."""

_STREAM_ATTEMPTS = 3


class Downloader:
    """Fetches whole artifacts of at most `max_artifact_bytes` from an object store; blocking."""

    def __init__(self, *, store: ObjectStore, max_artifact_bytes: int) -> None:
        self._store = store
        self._max_artifact_bytes = max_artifact_bytes

    def read_manifest(self, model: str, digest: str) -> Manifest:
        """Read a manifest; nothing is written. Raises as `weightshift.artifacts.build.read_manifest`."""
        return read_manifest(self._store, model, digest)

    def read_small_file(self, manifest: Manifest, file: ManifestFile) -> bytes:
        """Read a small file; nothing is written. Raises as `weightshift.artifacts.base.read_object`."""
        key = blob_key(manifest.model, file.sha256)
        return read_object(self._store, key, sha256=file.sha256, max_bytes=MAX_SMALL_FILE_BYTES)

    def download(self, model: str, digest: str, directory: int, progress: Progress) -> None:
        """Fill an open, empty directory, durably; the completion marker is written last.

        Raises `DigestMismatch`, `UnsafeArtifact`, `UnknownArtifact`, `ObjectStoreUnreachable`,
        `OSError`, and whatever `progress` raises.
        """
        manifest = read_manifest(self._store, model, digest)
        total = manifest.total_bytes
        if total > self._max_artifact_bytes:
            raise UnsafeArtifact(
                f"The artifact has {total} bytes and this instance accepts {self._max_artifact_bytes}; "
                "raise its max_artifact_bytes."
            )
        done = 0
        progress(done, total)
        # Files of the same content are stored once.
        for file in {file.sha256: file for file in manifest.files}.values():
            for size in self._write_file(model, file, directory):
                done += size
                progress(done, total)
        _write_durably(directory, MANIFEST, manifest.canonical_bytes())
        _write_durably(directory, MARKER, marker_content(digest))
        os.fsync(directory)
        progress(total, total)

    def _write_file(self, model: str, file: ManifestFile, directory: int) -> Iterator[int]:
        """Write one file under its SHA-256, yielding the bytes each step wrote."""
        written, hasher = 0, hashlib.sha256()
        with _create(directory, file.sha256) as target:
            for chunk in self._stream(blob_key(model, file.sha256)):
                written += len(chunk)
                if written > file.bytes:
                    raise DigestMismatch(
                        f"{file.path} is longer than the {file.bytes} bytes of its manifest."
                    )
                target.write(chunk)
                hasher.update(chunk)
                yield len(chunk)
            if written < file.bytes:
                raise DigestMismatch(f"{file.path} ends after {written} of {file.bytes} bytes.")
            if hasher.hexdigest() != file.sha256:
                raise DigestMismatch(f"{file.path} does not have the SHA-256 of its manifest.")
            target.flush()
            os.fsync(target.fileno())

    def _stream(self, key: str) -> Iterator[bytes]:
        """Yield an object's bytes; a cut stream goes on where it stopped, a few times."""
        offset = 0
        for attempt in range(1, _STREAM_ATTEMPTS + 1):
            try:
                for chunk in self._store.stream(key, offset=offset):
                    offset += len(chunk)
                    yield chunk
            except ObjectStoreUnreachable:
                if attempt == _STREAM_ATTEMPTS:
                    raise
            else:
                return


def _create(directory: int, name: str) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(name, flags, 0o444, dir_fd=directory), "wb")


def _write_durably(directory: int, name: str, content: bytes) -> None:
    with _create(directory, name) as target:
        target.write(content)
        target.flush()
        os.fsync(target.fileno())
