"""Brings an artifact's bytes into a directory, checking size and SHA-256 while they are written."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from runtime.cached_artifact import MANIFEST, MARKER, MAX_SMALL_FILE_BYTES, marker_content
from runtime.range_reader import FetchLimits, RangeReader
from weightshift.artifacts.base import ObjectStore, blob_key, read_object
from weightshift.artifacts.build import read_manifest
from weightshift.contracts.manifest import Manifest, ManifestFile
from weightshift.errors import DigestMismatch, UnsafeArtifact

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total; may raise to stop a download."""

_PIECE_BYTES = 1 << 20


class Downloader:
    """Fetches whole artifacts of at most `max_artifact_bytes` from an object store; blocking."""

    def __init__(
        self, *, store: ObjectStore, max_artifact_bytes: int, limits: FetchLimits | None = None
    ) -> None:
        self._store = store
        self._max_artifact_bytes = max_artifact_bytes
        self._limits = limits or FetchLimits()

    def read_manifest(self, model: str, digest: str) -> Manifest:
        """Read a manifest; nothing is written. Raises as `weightshift.artifacts.build.read_manifest`."""
        return read_manifest(self._store, model, digest)

    def read_small_file(self, manifest: Manifest, file: ManifestFile) -> bytes:
        """Read a small file; nothing is written. Raises as `weightshift.artifacts.base.read_object`."""
        key = blob_key(manifest.model, file.sha256)
        return read_object(self._store, key, sha256=file.sha256, max_bytes=MAX_SMALL_FILE_BYTES)

    def download(self, model: str, digest: str, directory: int, progress: Progress) -> None:
        """Fill an open directory, durably; the completion marker is written last.

        What an earlier attempt left in it is used, once it has been hashed again. Raises `DigestMismatch`,
        `UnsafeArtifact`, `UnknownArtifact`, `ObjectStoreUnreachable`, `OSError`, and whatever `progress`
        raises.
        """
        manifest = read_manifest(self._store, model, digest)
        total = manifest.total_bytes
        if total > self._max_artifact_bytes:
            raise UnsafeArtifact(
                f"The artifact has {total} bytes and this instance accepts {self._max_artifact_bytes}; "
                "raise its max_artifact_bytes."
            )
        done = 0
        # Files of the same content are stored once.
        for file in {file.sha256: file for file in manifest.files}.values():
            self._fetch_file(model, file, directory, _Offset(progress, done, total))
            done += file.bytes
        _write_durably(directory, MANIFEST, manifest.canonical_bytes())
        _write_durably(directory, MARKER, marker_content(digest))
        os.fsync(directory)
        progress(total, total)

    def _fetch_file(
        self, model: str, file: ManifestFile, directory: int, progress: Callable[[int], None]
    ) -> None:
        """Write one file under its SHA-256; `progress` gets how many of its bytes are there and hashed."""
        with _open_partial(directory, file.sha256) as descriptor:
            partial = _PartialFile(file, descriptor, progress)
            partial.hash_existing()
            is_resumed = partial.written > 0
            try:
                self._complete(model, file, partial)
            except DigestMismatch:
                if not is_resumed:
                    raise
                # What an earlier attempt left may be what is wrong, not what the store sends.
                partial.begin_again()
                self._complete(model, file, partial)

    def _complete(self, model: str, file: ManifestFile, partial: "_PartialFile") -> None:
        """Fetch what is missing of a file. Raises `DigestMismatch` unless the whole is what it should be."""
        reader = RangeReader(
            store=self._store,
            key=blob_key(model, file.sha256),
            offset=partial.written,
            # One more than there should be, so that a longer object is seen.
            end=file.bytes + 1,
            limits=self._limits,
        )
        with reader, ThreadPoolExecutor(1, "download-writer") as writer:
            for part in reader.parts(partial.report):
                partial.append(part, writer)
        partial.finish()


@dataclass(frozen=True)
class _Offset:
    """Turns what is done of one file into what is done of them all."""

    progress: Progress
    before: int
    total: int

    def __call__(self, done: int) -> None:
        self.progress(self.before + done, self.total)


class _PartialFile:
    """A file on its way to the disk, hashed in the order of its bytes."""

    def __init__(self, file: ManifestFile, descriptor: int, progress: Callable[[int], None]) -> None:
        self.written = 0
        self._file = file
        self._descriptor = descriptor
        self._progress = progress
        self._hasher = hashlib.sha256()

    def report(self) -> None:
        """Tell how far it is."""
        self._progress(self.written)

    def hash_existing(self) -> None:
        """Take over what an earlier attempt wrote."""
        if os.fstat(self._descriptor).st_size > self._file.bytes:
            self.begin_again()
        while piece := os.read(self._descriptor, _PIECE_BYTES):
            self._hasher.update(piece)
            self.written += len(piece)
            self.report()

    def begin_again(self) -> None:
        """Forget every byte."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        self._hasher = hashlib.sha256()
        self.written = 0

    def append(self, part: memoryview, writer: ThreadPoolExecutor) -> None:
        """Write and hash the next bytes. Raises `DigestMismatch` when there are too many."""
        if self.written + len(part) > self._file.bytes:
            raise DigestMismatch(
                f"{self._file.path} is longer than the {self._file.bytes} bytes of its manifest."
            )
        # Both let the interpreter go, so that the slower of them alone counts.
        writing = writer.submit(_write_all, self._descriptor, part)
        self._hasher.update(part)
        writing.result()
        self.written += len(part)
        self.report()

    def finish(self) -> None:
        """Make it durable. Raises `DigestMismatch` unless it is what the manifest says."""
        if self.written < self._file.bytes:
            raise DigestMismatch(f"{self._file.path} ends after {self.written} of {self._file.bytes} bytes.")
        if self._hasher.hexdigest() != self._file.sha256:
            raise DigestMismatch(f"{self._file.path} does not have the SHA-256 of its manifest.")
        os.fchmod(self._descriptor, 0o444)
        os.fsync(self._descriptor)


@contextmanager
def _open_partial(directory: int, name: str) -> Iterator[int]:
    """Open a new file, or what an earlier attempt wrote of it; yields its descriptor."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            # A finished one is read-only, for its owner too.
            os.chmod(name, 0o600, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


def _write_durably(directory: int, name: str, content: bytes) -> None:
    # What an earlier attempt left is read-only and cannot be opened for writing.
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(name, flags, 0o444, dir_fd=directory), "wb") as target:
        target.write(content)
        target.flush()
        os.fsync(target.fileno())
