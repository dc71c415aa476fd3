"""The previous model in host memory: the way back is a copy, not a load."""

import threading
import time
from collections.abc import Callable

from runtime.generation_holder import LoadedModel
from runtime.host_memory import move_to_host
from runtime.memory_budget import free_bytes


class Standby:
    """Keeps the last model that served and was replaced, if it has at most `budget` bytes.

    It also needs `margin` bytes of the host's memory to be free beside it. Whatever is not kept goes to
    `dispose`. `seconds_back` is how long the way to the host took, which is about that of the way back.
    Safe from any thread.
    """

    def __init__(self, *, budget: int, margin: int, dispose: Callable[[LoadedModel], None]) -> None:
        self._budget = budget
        self._margin = margin
        self._dispose = dispose
        self._lock = threading.Lock()
        self._kept: LoadedModel | None = None
        self.seconds_back = 0.0

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
        started = time.monotonic()
        move_to_host(loaded)
        self.seconds_back = time.monotonic() - started
        self._replace(loaded)

    def take(self, manifest_sha256: str) -> LoadedModel | None:
        """Hand the model out again, in host memory as it was kept, if it is this one."""
        with self._lock:
            loaded = self._kept
            if loaded is None or loaded.manifest_sha256 != manifest_sha256:
                return None
            self._kept = None
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
        """Whether it fits; it may be in the host's memory already."""
        in_host = loaded.device == "cpu" or loaded.is_staged
        needed = self._margin if in_host else self._margin + loaded.allocated_bytes
        return loaded.allocated_bytes <= self._budget and free_bytes("cpu") >= needed
