"""One candidate's way from bytes to a model that may serve; blocking, for the loading thread."""

import time

from runtime.artifact_cache import ArtifactCache
from runtime.cached_artifact import CachedArtifact, is_damage
from runtime.candidate import CandidateTracker
from runtime.collection_pause import collection_paused
from runtime.device_health import DeviceHealth
from runtime.download import Downloader
from runtime.dry_run import dry_run
from runtime.generation_holder import LoadedModel
from runtime.host_memory import move_to_device
from runtime.in_place import is_exchangeable
from runtime.measurements import Measurement, Measurements
from runtime.memory_budget import MemoryNeed, check_budget, live_peak_bytes, whole_segments
from runtime.model_loader import VerifiedArtifact, check_fit, dispose, load, stage, verify
from runtime.peak_memory import measured_peak
from runtime.settings import RuntimeSettings, SwapMode
from runtime.signatures import SignaturePolicy
from runtime.standby import Standby
from runtime.tensor_fit import TensorSpecs, tensor_specs
from weightshift.contracts.instance import CandidatePhase
from weightshift.contracts.target import Target
from weightshift.errors import DigestMismatch, OutOfMemory, SwapRefused


class CandidatePreparer:
    """Fetches, verifies, loads and dry-runs."""

    def __init__(
        self,
        *,
        settings: RuntimeSettings,
        cache: ArtifactCache,
        downloader: Downloader,
        signatures: SignaturePolicy,
        standby: Standby,
        measurements: Measurements,
        health: DeviceHealth,
    ) -> None:
        self._cache = cache
        self._downloader = downloader
        self._signatures = signatures
        self._standby = standby
        self._measurements = measurements
        self._health = health
        self._device = settings.device
        self._margin = settings.memory_margin
        self._mode = settings.swap_mode

    def prepare(
        self, target: Target, tracker: CandidateTracker, *, serving: LoadedModel | None
    ) -> LoadedModel:
        """Return a model that may serve; one that is to take the place of `serving` is only staged.

        Raises a `CandidateError`, `UnsafeArtifact`, `UnknownArtifact`, `ObjectStoreUnreachable` or
        `OSError`; `Superseded` when a newer target arrives on the way.
        """
        if self._mode is SwapMode.REFUSE and serving is not None:
            raise SwapRefused
        try:
            if (kept := self._standby.take(target.manifest_sha256)) is not None:
                with collection_paused():
                    return self._restore(kept, serving)
            return self._load_from_cache(target, tracker, serving)
        except BaseException as error:
            self._health.note(error)
            raise

    def collect(self, keep: set[str], *, newest: int) -> None:
        """Remove cached artifacts that are no way back any more."""
        self._cache.collect(keep, newest=newest)

    def _restore(self, kept: LoadedModel, serving: LoadedModel | None) -> LoadedModel:
        """Bring a model back from host memory."""
        if not kept.is_staged or self._takes_place(serving, tensor_specs(kept.tensors)):
            return kept
        try:
            self._check_room(kept.allocated_bytes, kept.manifest_sha256)
        except OutOfMemory:
            self._standby.keep(kept)
            raise
        move_to_device(kept)
        return kept

    def _load_from_cache(
        self, target: Target, tracker: CandidateTracker, serving: LoadedModel | None
    ) -> LoadedModel:
        with self._fetch(target, tracker) as cached:
            try:
                return self._load_with_room(cached, target, tracker, serving)
            except (DigestMismatch, OSError) as error:
                if not is_damage(error):
                    raise
                self._cache.quarantine(cached.digest)
                if cached.is_fresh:
                    raise
        # The cached bytes went bad or were lost after they had been verified; the store still has good ones.
        with self._fetch(target, tracker) as cached:
            return self._load_with_room(cached, target, tracker, serving)

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
        self, cached: CachedArtifact, target: Target, tracker: CandidateTracker, serving: LoadedModel | None
    ) -> LoadedModel:
        """Load; short of memory, give up the model that is only the quick way back."""
        try:
            with collection_paused():
                return self._load(cached, target, tracker, serving)
        except OutOfMemory:
            if self._standby.digest is None:
                raise
        self._standby.clear()
        with collection_paused():
            return self._load(cached, target, tracker, serving)

    def _load(
        self, cached: CachedArtifact, target: Target, tracker: CandidateTracker, serving: LoadedModel | None
    ) -> LoadedModel:
        tracker.enter(CandidatePhase.VERIFYING)
        started = time.monotonic()
        verified = verify(cached, target=target, checkpoint=tracker.checkpoint)
        tracker.enter(CandidatePhase.LOADING)
        if self._takes_place(serving, verified.tensor_specs):
            staged = stage(
                verified, device=self._device, memory_margin=self._margin, checkpoint=tracker.checkpoint
            )
            tracker.measured(staged.allocated_bytes)
            self._measurements.keep(cached.digest, Measurement(load_seconds=time.monotonic() - started))
            return staged
        loaded, workspace = self._load_and_try(verified, tracker)
        tracker.measured(loaded.allocated_bytes + workspace)
        seconds = time.monotonic() - started
        self._measurements.keep(cached.digest, Measurement(load_seconds=seconds, workspace_bytes=workspace))
        return loaded

    def _load_and_try(self, verified: VerifiedArtifact, tracker: CandidateTracker) -> tuple[LoadedModel, int]:
        """Return a model that has answered its samples, and the bytes that took."""
        loaded = load(
            verified,
            device=self._device,
            memory_margin=self._margin,
            checkpoint=tracker.checkpoint,
            workspace=self._measurements.workspace_of(verified.cached.digest),
        )
        try:
            tracker.enter(CandidatePhase.DRY_RUNNING)
            with measured_peak(self._device) as peak:
                dry_run(loaded, checkpoint=tracker.checkpoint)
        except BaseException:
            dispose(loaded)
            raise
        return loaded, peak.bytes

    def _takes_place(self, serving: LoadedModel | None, candidate: TensorSpecs) -> bool:
        """Whether a candidate is to be copied over the weights that serve."""
        if self._mode is not SwapMode.IN_PLACE or serving is None:
            return False
        return is_exchangeable(serving, candidate)

    def _check_room(self, weights: int, digest: str) -> None:
        need = MemoryNeed(
            weights=whole_segments(weights, self._device),
            workspace=self._measurements.workspace_of(digest),
            live_peak=live_peak_bytes(self._device),
            margin=self._margin,
        )
        check_budget(need, device=self._device)
