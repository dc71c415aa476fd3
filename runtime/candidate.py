"""One candidate's way from bytes to a model that may serve, and the progress it reports."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from runtime.artifact_cache import ArtifactCache
from runtime.cached_artifact import CachedArtifact
from runtime.device_health import DeviceHealth
from runtime.download import Downloader
from runtime.dry_run import dry_run
from runtime.generation_holder import LoadedModel
from runtime.model_loader import check_fit, dispose, load, verify
from runtime.signatures import SignaturePolicy
from runtime.standby import Standby
from weightshift.contracts.instance import CandidatePhase, CandidateProgress, InstanceError
from weightshift.contracts.target import Target
from weightshift.errors import (
    CandidateError,
    DigestMismatch,
    InvalidInput,
    OutOfMemory,
    Superseded,
    WeightshiftError,
)


class CandidateTracker:
    """Where one attempt at a target stands. Written by the loading thread, read by reports.

    `superseded` tells whether a newer target has arrived; `changed` is called at every phase change.
    """

    def __init__(
        self,
        *,
        target: Target,
        attempt: int,
        superseded: Callable[[], bool],
        changed: Callable[[], None],
        phase_ended: Callable[[str, float], None],
    ) -> None:
        self._target = target
        self._attempt = attempt
        self._superseded = superseded
        self._changed = changed
        self._phase_ended = phase_ended
        self._phase = CandidatePhase.WAITING
        self._entered = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._bytes = (0, 0)
        self._peak: int | None = None
        self._error: InstanceError | None = None
        self._blamed: CandidatePhase | None = None

    @property
    def progress(self) -> CandidateProgress:
        """The progress as instance reports carry it."""
        done, total = self._bytes
        return CandidateProgress(
            revision=self._target.revision,
            artifact_id=self._target.artifact_id,
            phase=self._phase,
            attempt=self._attempt,
            bytes_total=total,
            bytes_done=done,
            phase_seconds=dict(self._seconds),
            peak_memory_bytes=self._peak,
            error=self._error,
        )

    def checkpoint(self) -> None:
        """Raise `Superseded` if a newer target has arrived."""
        if self._superseded():
            raise Superseded

    def enter(self, phase: CandidatePhase) -> None:
        """Go on to a phase. Raises `Superseded`."""
        self.checkpoint()
        self._move(phase)

    def downloaded(self, done: int, total: int) -> None:
        """Take the bytes done and in total. Raises `Superseded`."""
        self._bytes = (done, total)
        self.checkpoint()

    @contextmanager
    def blaming(self, phase: CandidatePhase) -> Iterator[None]:
        """Report what fails inside as a failure of `phase`, which formally comes later."""
        self._blamed = phase
        yield
        # Not reached by a failure, which is reported after this block has ended.
        self._blamed = None

    def measured(self, peak_memory_bytes: int) -> None:
        """Take the most memory the candidate needed on its device."""
        self._peak = peak_memory_bytes

    def commit(self) -> None:
        """The candidate may serve, and is about to."""
        self._move(CandidatePhase.COMMITTING)

    def install(self) -> None:
        """The candidate serves."""
        self._move(CandidatePhase.INSTALLED)

    def fail(self, error: Exception) -> InstanceError:
        """End the attempt; returns the error as it is reported."""
        self._error = _describe(error, self._blamed or self._phase)
        self._move(CandidatePhase.FAILED)
        return self._error

    def _move(self, phase: CandidatePhase) -> None:
        now = time.monotonic()
        seconds = now - self._entered
        self._seconds = {**self._seconds, self._phase.value: round(seconds, 6)}
        self._phase_ended(self._phase.value, seconds)
        self._phase, self._entered = phase, now
        self._changed()


class CandidatePreparer:
    """Fetches, verifies, loads and dry-runs; blocking, for the loading thread."""

    def __init__(
        self,
        *,
        cache: ArtifactCache,
        downloader: Downloader,
        signatures: SignaturePolicy,
        standby: Standby,
        health: DeviceHealth,
        device: str,
        memory_margin: int,
    ) -> None:
        self._cache = cache
        self._downloader = downloader
        self._signatures = signatures
        self._standby = standby
        self._health = health
        self._device = device
        self._memory_margin = memory_margin

    def prepare(self, target: Target, tracker: CandidateTracker) -> LoadedModel:
        """Return a model that may serve.

        Raises a `CandidateError`, `UnsafeArtifact`, `UnknownArtifact`, `ObjectStoreUnreachable` or
        `OSError`; `Superseded` when a newer target arrives on the way.
        """
        try:
            return self._standby.take(target.manifest_sha256) or self._prepare(target, tracker)
        except BaseException as error:
            self._health.note(error)
            raise

    def collect(self, keep: set[str], *, newest: int) -> None:
        """Remove cached artifacts that are no way back any more."""
        self._cache.collect(keep, newest=newest)

    def _prepare(self, target: Target, tracker: CandidateTracker) -> LoadedModel:
        with self._fetch(target, tracker) as cached:
            try:
                return self._load_with_room(cached, target, tracker)
            except DigestMismatch:
                self._cache.quarantine(cached.digest)
                if cached.is_fresh:
                    raise
        # The cached bytes went bad after they had been verified; the store still has good ones.
        with self._fetch(target, tracker) as cached:
            return self._load_with_room(cached, target, tracker)

    def _fetch(self, target: Target, tracker: CandidateTracker) -> CachedArtifact:
        tracker.enter(CandidatePhase.DOWNLOADING)
        with tracker.blaming(CandidatePhase.VERIFYING):
            self._check_before_download(target)
        return self._cache.fetch(target.service.model, target.manifest_sha256, tracker.downloaded)

    def _check_before_download(self, target: Target) -> None:
        """Check who signed the artifact and whether it fits, from its manifest and small files alone."""
        cached = self._cache.open(target.manifest_sha256)
        if cached is not None:
            with cached:
                self._signatures.check_artifact(target, cached.manifest)
            return
        manifest = self._downloader.read_manifest(target.service.model, target.manifest_sha256)
        self._signatures.check_artifact(target, manifest)
        check_fit(manifest, target=target, read=self._downloader.read_small_file)

    def _load_with_room(
        self, cached: CachedArtifact, target: Target, tracker: CandidateTracker
    ) -> LoadedModel:
        """Load; short of memory, give up the model that is only the quick way back."""
        try:
            return self._load(cached, target, tracker)
        except OutOfMemory:
            if self._standby.digest is None:
                raise
        self._standby.clear()
        return self._load(cached, target, tracker)

    def _load(self, cached: CachedArtifact, target: Target, tracker: CandidateTracker) -> LoadedModel:
        tracker.enter(CandidatePhase.VERIFYING)
        verified = verify(cached, target=target)
        tracker.enter(CandidatePhase.LOADING)
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        loaded = load(
            verified,
            device=self._device,
            memory_margin=self._memory_margin,
            checkpoint=tracker.checkpoint,
        )
        try:
            tracker.enter(CandidatePhase.DRY_RUNNING)
            dry_run(loaded)
        except BaseException:
            dispose(loaded)
            raise
        on_device = self._device == "cuda"
        tracker.measured(torch.cuda.max_memory_allocated() if on_device else loaded.allocated_bytes)
        return loaded


def _describe(error: Exception, phase: CandidatePhase) -> InstanceError:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        error = OutOfMemory()
    if not isinstance(error, WeightshiftError):
        # Its text may name local paths, so only its kind is reported; the log has the rest.
        # An operating system's reason ("No space left on device") names none and is what helps.
        kind = (
            os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
        )
        error = WeightshiftError(f"{kind} while {phase.value}; the instance's log has more.")
    return InstanceError(
        type=type(error).__name__,
        message=str(error),
        phase=phase,
        permanent=isinstance(error, CandidateError | InvalidInput),
    )
