"""What loading an artifact took the last time, kept beside the cache for the next time."""

import logging
import uuid
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_logger = logging.getLogger(__name__)
_MOST_KEPT = 64


class Measurement(BaseModel):
    """`load_seconds` is how long an artifact in the cache takes to be ready; `workspace_bytes` is the most
    memory that its dry-run needed beside the weights, where that was measured.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    load_seconds: float = Field(ge=0)
    workspace_bytes: int | None = Field(default=None, ge=0)


class Measurements:
    """Measurements by manifest digest, for one kind of device and runtime build. Blocking.

    A disk that refuses one costs only the knowledge.
    """

    def __init__(self, *, directory: Path, device: str, runtime_build: str) -> None:
        self._directory = directory / f"{device}~{runtime_build}"

    def read(self, digest: str) -> Measurement | None:
        """Return the last measurement of an artifact."""
        try:
            return Measurement.model_validate_json((self._directory / digest).read_bytes())
        except (OSError, ValidationError):
            return None

    def keep(self, digest: str, measurement: Measurement) -> None:
        """Replace an artifact's measurement, and forget those of long ago."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            temporary = self._directory / f".{uuid.uuid4().hex}"
            temporary.write_text(measurement.model_dump_json(), encoding="utf-8")
            temporary.rename(self._directory / digest)
            for old in self._by_age()[:-_MOST_KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("a measurement could not be kept: %s", error.strerror)

    def workspace_of(self, digest: str) -> int:
        """Return what an artifact's dry-run needs: as measured, or else as much as any needed here."""
        known = self.read(digest)
        if known is not None and known.workspace_bytes is not None:
            return known.workspace_bytes
        others = [self.read(path.name) for path in self._by_age()]
        return max((one.workspace_bytes or 0 for one in others if one is not None), default=0)

    def _by_age(self) -> list[Path]:
        try:
            return sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime)
        except OSError:
            return []
