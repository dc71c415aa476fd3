"""Where models come from: the store, the disk, host memory, and what each way costs."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runtime.artifact_cache import ArtifactCache
from runtime.candidate_preparer import CandidatePreparer
from runtime.compatibility import runtime_build
from runtime.device_health import DeviceHealth
from runtime.download import Downloader
from runtime.generation_holder import Generation
from runtime.measurements import Measurements
from runtime.model_loader import dispose
from runtime.range_reader import FetchLimits
from runtime.settings import RuntimeSettings
from runtime.signatures import SignatureCache, SignaturePolicy, accepted_keys
from runtime.standby import Standby
from runtime.target_state import TargetState
from weightshift.artifacts.base import ObjectStore
from weightshift.contracts.target import Target

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tier:
    """Where an artifact's weights are (`device`, `host` or `disk`), and about how many seconds it takes
    until they could serve; None while nobody has measured that.
    """

    place: str
    seconds: float | None


class ModelSupply:
    """What an instance keeps of models that do not serve, and the parts that turn them into candidates.

    Creating it raises `InvalidInput`, before anything else, when the settings do not say who may sign.
    """

    def __init__(self, *, settings: RuntimeSettings, store: ObjectStore, health: DeviceHealth) -> None:
        signatures = SignaturePolicy(
            accepted=accepted_keys(settings),
            signatures=SignatureCache(directory=settings.cache_dir / "signatures", store=store),
        )
        self.allows_unsigned = signatures.allows_unsigned
        if self.allows_unsigned:
            _logger.warning("insecure_unsigned is set: artifacts and targets are loaded unsigned")
        downloader = Downloader(
            store=store,
            max_artifact_bytes=settings.max_artifact_bytes,
            limits=FetchLimits(least_rate=settings.fetch_least_rate, patience=settings.fetch_patience),
        )
        self._kept = settings.cache_keep
        self._cache = ArtifactCache(root=settings.cache_dir, downloader=downloader)
        self._cache.sweep()
        self._measurements = Measurements(
            directory=settings.cache_dir / "measured", device=settings.device, runtime_build=runtime_build()
        )
        self.standby = Standby(budget=settings.standby_bytes, margin=settings.memory_margin, dispose=dispose)
        self.preparer = CandidatePreparer(
            settings=settings,
            cache=self._cache,
            downloader=downloader,
            signatures=signatures,
            standby=self.standby,
            measurements=self._measurements,
            health=health,
        )
        self.target_state = TargetState(
            directory=settings.cache_dir / "targets",
            service=settings.service,
            cohort=settings.cohort,
            check=signatures.check_new_target,
        )
        # From the start on, because whoever else uses the cache may need room.
        self._cache.pin(self.target_state.served)

    def remember(
        self, target: Target, resident: Iterable[Generation], *, stand_back: Callable[[], None]
    ) -> None:
        """Trust a target that serves, and remove artifacts that nobody needs; requests go first."""
        stand_back()
        self.target_state.trust(target)
        stand_back()
        needed = {generation.loaded.manifest_sha256 for generation in resident}
        try:
            self.preparer.collect(needed | self.target_state.served, newest=self._kept)
        except OSError:
            _logger.exception("old artifacts could not be removed from the cache")

    def tiers(self, resident: Iterable[Generation]) -> dict[str, Tier]:
        """Return where each artifact's weights are, by manifest digest; `resident` are in memory."""
        tiers = {}
        for digest in self._cache.digests():
            measured = self._measurements.read(digest)
            tiers[digest] = Tier("disk", measured.load_seconds if measured else None)
        if (standby := self.standby.digest) is not None:
            tiers[standby] = Tier("host", self.standby.seconds_back)
        for generation in resident:
            if not generation.loaded.is_staged:
                tiers[generation.loaded.manifest_sha256] = Tier("device", 0.0)
        return tiers
