"""The local cache: `artifacts/DIGEST/` holds `manifest.json`, one file per SHA-256, and a marker.

A directory appears there by one rename, complete and verified, and is never written again. Whoever
builds or reads one holds a lock on it, so that several processes can share a cache. A download is put
together in `incoming/DIGEST/`, where the next attempt goes on, after a restart too; under any other name
there, a second process fetches what the first one is at, and nobody goes on with that.
"""

import errno
import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runtime.cached_artifact import CachedArtifact, is_damage
from runtime.download import Downloader, Progress
from runtime.workspace import Workspace, fsync_directory, last_written, locked, remove
from weightshift.contracts.base import DIGEST_PATTERN
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, Superseded

_logger = logging.getLogger(__name__)

_RESUMABLE_SECONDS = 24 * 3600.0
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class ArtifactCache:
    """Content-addressed directories on one file system; blocking, for worker threads."""

    def __init__(self, *, root: Path, downloader: Downloader) -> None:
        self._downloader = downloader
        self._artifacts = root / "artifacts"
        self._incoming = root / "incoming"
        self._quarantine = root / "quarantine"
        self._needed: frozenset[str] = frozenset()
        self._pinned: dict[str, CachedArtifact] = {}
        self._make_directories()

    def fetch(self, model: str, digest: str, progress: Progress) -> CachedArtifact:
        """Return a complete artifact, downloading it if the cache has none; raises as `download`.

        On a full disk what nobody needs makes room for it, once.
        """
        if (cached := self.open(digest)) is not None:
            progress(cached.manifest.total_bytes, cached.manifest.total_bytes)
            return cached
        try:
            return self._download(model, digest, progress)
        except OSError as error:
            if error.errno not in _NO_ROOM or not self._make_room():
                raise
        return self._download(model, digest, progress)

    def open(self, digest: str) -> CachedArtifact | None:
        """Return a complete cached artifact; one that is not is quarantined and counts as missing.

        Raises `OSError` when it cannot be read now, though nothing is known to be wrong with it.
        """
        cached = self._open_complete(digest)
        if cached is not None:
            # The newest modification times are what `collect` keeps.
            with suppress(OSError):
                os.utime(self._artifacts / digest)
        return cached

    def quarantine(self, digest: str) -> None:
        """Take a corrupt directory out of use; only the latest one is kept for people to look at."""
        for earlier in list(self._quarantine.iterdir()):
            remove(earlier)
        # Its lock would not be that of what is fetched in its place.
        if (pinned := self._pinned.pop(digest, None)) is not None:
            pinned.close()
        with suppress(FileNotFoundError):
            (self._artifacts / digest).rename(self._quarantine / f"{digest}.{uuid.uuid4().hex}")

    def sweep(self) -> None:
        """At start: remove what dead downloads left, but for the latest; quarantine what is not complete."""
        self._remove_unused(set(self._incoming.iterdir()) - self._resumable())
        for entry in list(self._artifacts.iterdir()):
            try:
                if not re.match(DIGEST_PATTERN, entry.name):
                    self.quarantine(entry.name)
                elif (cached := self._open_complete(entry.name)) is not None:
                    cached.close()
            except OSError:
                # Whoever needs it will try again, and no start fails for it.
                _logger.warning("cached manifest %s could not be checked", entry.name, exc_info=True)

    def pin(self, digests: Collection[str]) -> None:
        """Keep these artifacts, and no others: neither this process nor another one removes them."""
        self._needed = frozenset(digests)
        for digest in self._pinned.keys() - self._needed:
            self._pinned.pop(digest).close()
        for digest in self._needed - self._pinned.keys():
            try:
                cached = self._open_complete(digest)
            except OSError:
                _logger.warning("cached manifest %s could not be locked", digest, exc_info=True)
                continue
            if cached is not None:
                self._pinned[digest] = cached

    def collect(self, keep: Collection[str], *, newest: int) -> None:
        """Remove all but the digests in `keep` and the `newest` most recently used ones.

        Only renames and unlinks; an artifact that somebody reads is left for the next time. What is in `keep`
        is pinned until then. Stopped downloads that nobody has gone on with go as well.
        """
        self._remove_unused(self._partials() - self._resumable())
        self.pin(keep)
        entries = sorted(self._artifacts.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
        self._remove_unneeded(entries[newest:])

    def digests(self) -> list[str]:
        """Return the manifest digests of what is in the cache; none where it cannot be read."""
        try:
            return sorted(entry.name for entry in self._artifacts.iterdir())
        except OSError:
            return []

    def _make_directories(self) -> None:
        for directory in (self._artifacts, self._incoming, self._quarantine):
            directory.mkdir(parents=True, exist_ok=True)

    def _open_complete(self, digest: str) -> CachedArtifact | None:
        try:
            return CachedArtifact.open(self._artifacts / digest)
        except FileNotFoundError:
            return None
        except (DigestMismatch, OSError) as error:
            if not is_damage(error):
                raise
            _logger.warning("quarantined cached manifest %s: %s", digest, type(error).__name__)
            self.quarantine(digest)
            return None

    def _download(self, model: str, digest: str, progress: Progress) -> CachedArtifact:
        # Somebody may have removed them from under this process.
        self._make_directories()
        with self._workspace(digest) as work:
            self._downloader.download(model, digest, work.descriptor, progress)
            return self._publish(work.path, work.descriptor, digest)

    def _make_room(self) -> bool:
        """Remove what is kept only in case somebody wants it; returns whether there was any."""
        quarantined = list(self._quarantine.iterdir())
        for entry in quarantined:
            remove(entry)
        removed = self._remove_unneeded(self._artifacts.iterdir())
        _logger.warning("the disk is full: removed %s", removed + [entry.name for entry in quarantined])
        return bool(removed or quarantined)

    def _remove_unneeded(self, entries: Iterable[Path]) -> list[str]:
        """Remove artifacts that are not pinned and that nobody reads; returns their names."""
        removed = []
        for entry in entries:
            if entry.name in self._needed:
                continue
            doomed = self._incoming / uuid.uuid4().hex
            with locked(entry) as is_ours, suppress(FileNotFoundError):
                if is_ours:
                    entry.rename(doomed)
                    remove(doomed)
                    removed.append(entry.name)
        return removed

    @contextmanager
    def _workspace(self, digest: str) -> Iterator[Workspace]:
        """Yield a locked directory for one artifact.

        It stays for the next attempt when the store went away or a newer target came, and only then.
        """
        # One artifact at a time: what stopped downloads of others left makes room.
        self._remove_unused(self._partials() - {self._incoming / digest})
        work = Workspace.open(self._incoming / digest) or Workspace.create(self._incoming / uuid.uuid4().hex)
        try:
            yield work
        except (ObjectStoreUnreachable, Superseded):
            # Under any other name the next attempt would not find it.
            work.close(keep=work.path.name == digest)
            raise
        except BaseException:
            work.close(keep=False)
            raise
        work.close(keep=False)

    def _partials(self) -> set[Path]:
        """Return the downloads that have stopped or are going on, but for second ones of an artifact."""
        return {entry for entry in self._incoming.iterdir() if re.match(DIGEST_PATTERN, entry.name)}

    def _resumable(self) -> set[Path]:
        """Return the one stopped download that is kept: the latest of what the cache lacks, for a day."""
        lacking = {partial for partial in self._partials() if not (self._artifacts / partial.name).exists()}
        latest = sorted(lacking, key=last_written)[-1:]
        return {partial for partial in latest if time.time() - last_written(partial) < _RESUMABLE_SECONDS}

    def _remove_unused(self, leftovers: Iterable[Path]) -> None:
        """Remove those that no process is at."""
        for leftover in leftovers:
            with locked(leftover) as is_ours:
                if is_ours:
                    remove(leftover)

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
        fsync_directory(self._artifacts)
        # The workspace's lock moved with the directory; a reader needs only a shared one.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        cached = CachedArtifact.open(final)
        cached.is_fresh = True
        return cached
