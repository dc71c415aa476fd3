"""The local cache: `artifacts/DIGEST/` holds `manifest.json`, one file per SHA-256, and a marker.

A directory appears there by one rename, complete and verified, and is never written again. Whoever
builds or reads one holds a lock on it, so that several processes can share a cache.
"""

import errno
import fcntl
import logging
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.cached_artifact import CachedArtifact
from runtime.download import Downloader, Progress
from weightshift.contracts.base import DIGEST_PATTERN
from weightshift.errors import DigestMismatch, UnsafeArtifact

_logger = logging.getLogger(__name__)


class ArtifactCache:
    """Content-addressed directories on one file system; blocking, for worker threads."""

    def __init__(self, *, root: Path, downloader: Downloader) -> None:
        self._downloader = downloader
        self._artifacts = root / "artifacts"
        self._incoming = root / "incoming"
        self._quarantine = root / "quarantine"
        for directory in (self._artifacts, self._incoming, self._quarantine):
            directory.mkdir(parents=True, exist_ok=True)

    def fetch(self, model: str, digest: str, progress: Progress) -> CachedArtifact:
        """Return a complete artifact, downloading it if the cache has none; raises as `download`."""
        if (cached := self.open(digest)) is not None:
            progress(cached.manifest.total_bytes, cached.manifest.total_bytes)
            return cached
        with self._workspace() as (path, descriptor):
            self._downloader.download(model, digest, descriptor, progress)
            return self._publish(path, descriptor, digest)

    def open(self, digest: str) -> CachedArtifact | None:
        """Return a complete cached artifact; one that is not is quarantined and counts as missing."""
        cached = self._open_complete(digest)
        if cached is not None:
            # The newest modification times are what `collect` keeps.
            with suppress(OSError):
                os.utime(self._artifacts / digest)
        return cached

    def quarantine(self, digest: str) -> None:
        """Take a corrupt directory out of use; only the latest one is kept for people to look at."""
        for earlier in list(self._quarantine.iterdir()):
            _remove(earlier)
        with suppress(FileNotFoundError):
            (self._artifacts / digest).rename(self._quarantine / f"{digest}.{uuid.uuid4().hex}")

    def sweep(self) -> None:
        """At start: remove what dead downloads left, and quarantine what is not complete."""
        for leftover in list(self._incoming.iterdir()):
            with _locked(leftover) as is_ours:
                if is_ours:
                    _remove(leftover)
        for entry in list(self._artifacts.iterdir()):
            if not re.match(DIGEST_PATTERN, entry.name):
                self.quarantine(entry.name)
            elif (cached := self._open_complete(entry.name)) is not None:
                cached.close()

    def collect(self, keep: Collection[str], *, newest: int) -> None:
        """Remove all but the digests in `keep` and the `newest` most recently used ones.

        Only renames and unlinks; an artifact that somebody reads is left for the next time.
        """
        entries = sorted(self._artifacts.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in entries[newest:]:
            if entry.name in keep:
                continue
            doomed = self._incoming / uuid.uuid4().hex
            with _locked(entry) as is_ours, suppress(FileNotFoundError):
                if is_ours:
                    entry.rename(doomed)
                    _remove(doomed)

    def digests(self) -> list[str]:
        """Return the manifest digests of what is in the cache."""
        return sorted(entry.name for entry in self._artifacts.iterdir())

    def _open_complete(self, digest: str) -> CachedArtifact | None:
        try:
            return CachedArtifact.open(self._artifacts / digest)
        except FileNotFoundError:
            return None
        except (DigestMismatch, UnsafeArtifact, NotADirectoryError) as error:
            _logger.warning("quarantined cached manifest %s: %s", digest, type(error).__name__)
            self.quarantine(digest)
            return None

    @contextmanager
    def _workspace(self) -> Iterator[tuple[Path, int]]:
        """Yield a new locked directory, removed at the end unless it was renamed away."""
        path = self._incoming / uuid.uuid4().hex
        path.mkdir()
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Another process's sweep may remove the directory before this lock; creating the first
            # file in it then fails, and the attempt is repeated like any other.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield path, descriptor
        finally:
            os.close(descriptor)
            _remove(path)

    def _publish(self, path: Path, descriptor: int, digest: str) -> CachedArtifact:
        """Rename a finished directory into place, or use the one another process put there first."""
        final = self._artifacts / digest
        try:
            path.rename(final)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            if (cached := self.open(digest)) is not None:
                return cached
            path.rename(final)
        _fsync_directory(self._artifacts)
        # The workspace's lock moved with the directory; a reader needs only a shared one.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        cached = CachedArtifact.open(final)
        cached.is_fresh = True
        return cached


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to lock a directory exclusively; yields whether nobody else uses it (files count as free)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        yield path.is_symlink()
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except BlockingIOError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
