"""The previous model in host memory: the way back is a copy, not a load."""

import threading
from collections.abc import Callable

from runtime.generation_holder import LoadedModel
from runtime.memory_budget import free_bytes


class Standby:
    """Keeps the last model that served and was replaced, if it has at most `budget` bytes.

    It also needs `margin` bytes of the host's memory to be free beside it. Whatever is not kept goes to
    `dispose`. Safe from any thread.
    """

    def __init__(self, *, budget: int, margin: int, dispose: Callable[[LoadedModel], None]) -> None:
        self._budget = budget
        self._margin = margin
        self._dispose = dispose
        self._lock = threading.Lock()
        self._kept: LoadedModel | None = None

    @property
    def digest(self) -> str | None:
        """The manifest digest of what is kept."""
        kept = self._kept
        return kept.manifest_sha256 if kept else None

    def keep(self, loaded: LoadedModel) -> None:
        """Take a model that no generation uses any more; raises what `dispose` raises."""
        if not loaded.has_served or not self._has_room(loaded):
            self._dispose(loaded)
            return
        loaded.module.to("cpu")
        self._replace(loaded)

    def take(self, manifest_sha256: str) -> LoadedModel | None:
        """Hand the model out again, on its device, if it is the one kept."""
        with self._lock:
            loaded = self._kept
            if loaded is None or loaded.manifest_sha256 != manifest_sha256:
                return None
            self._kept = None
        loaded.module.to(loaded.device)
        loaded.generations = 1
        return loaded

    def clear(self) -> None:
        """Free what is kept: a candidate needs the memory."""
        self._replace(None)

    def _replace(self, loaded: LoadedModel | None) -> None:
        with self._lock:
            earlier, self._kept = self._kept, loaded
        if earlier is not None:
            self._dispose(earlier)

    def _has_room(self, loaded: LoadedModel) -> bool:
        """Whether it fits; on the CPU it is in the host's memory already."""
        needed = self._margin if loaded.device == "cpu" else self._margin + loaded.allocated_bytes
        return loaded.allocated_bytes <= self._budget and free_bytes("cpu") >= needed
