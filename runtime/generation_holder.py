"""The generation that serves, and the accounting that lets the next one take over at any moment.

One short lock covers reading the version and counting the reference. No download, load, inference or
clean-up ever runs under it, so publishing never waits for old requests.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch import Tensor, nn

from runtime.architectures import Architecture
from weightshift.contracts.instance import LoadedGeneration
from weightshift.contracts.target import Target
from weightshift.errors import NotServing

_numbers = count(1)


@dataclass(eq=False)
class LoadedModel:
    """Verified, loaded and dry-run weights with everything derived from them.

    Several generations can share one (the same artifact at a higher revision is only relabelled);
    the holder counts them in `generations`. `allocated_bytes` is the size of the weights' storage, which
    `tensors` are views of, by the names in the file. A model that `is_staged` holds its weights in host
    memory only, and cannot answer on another device until they are copied there.
    """

    manifest_sha256: str
    feature_schema: str
    architecture: Architecture
    module: nn.Module
    resources: Any
    device: str
    allocated_bytes: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    is_staged: bool = False
    generations: int = 1
    has_served: bool = False


class Generation:
    """One artifact at one revision, as requests see it. Everything they use hangs off it.

    One that `is_hurried` is replaced and its memory is needed: its sessions end at their next step.
    """

    __slots__ = (
        "headers",
        "is_hurried",
        "loaded",
        "number",
        "references",
        "retired",
        "retired_at",
        "revision",
        "target",
    )

    def __init__(self, *, target: Target, loaded: LoadedModel, runtime_build: str) -> None:
        self.target = target
        self.revision = target.revision
        self.loaded = loaded
        self.number = next(_numbers)
        self.references = 0
        self.retired = False
        self.retired_at: float | None = None
        self.is_hurried = False
        self.headers: Sequence[tuple[bytes, bytes]] = (
            (b"x-weightshift-artifact", target.artifact_id.encode()),
            (b"x-weightshift-revision", str(target.revision).encode()),
            (b"x-weightshift-generation", str(self.number).encode()),
            (b"x-weightshift-runtime-build", runtime_build.encode()),
        )

    def retire(self) -> None:
        """Note that new requests go elsewhere from now on; the holder calls this."""
        self.retired, self.retired_at = True, time.monotonic()

    def describe(self) -> LoadedGeneration:
        """Return what instance reports say of this generation."""
        return LoadedGeneration(
            revision=self.revision,
            artifact_id=self.target.artifact_id,
            manifest_sha256=self.loaded.manifest_sha256,
            feature_schema=self.loaded.feature_schema,
            generation=self.number,
        )


class GenerationHolder:
    """Hands out the current generation, installs the next, and retires each exactly once.

    `retire` gets a generation as soon as it is superseded and unreferenced; it must only queue it,
    and whoever works that queue calls `forget`.
    """

    def __init__(self, *, retire: Callable[[Generation], None]) -> None:
        self._lock = threading.Lock()
        self._retire = retire
        self._current: Generation | None = None
        self._desired: Target | None = None
        self._floor = 0
        self._resident: dict[int, Generation] = {}

    def acquire(self) -> Generation:
        """Borrow the current generation until `release`. Raises `NotServing`, also below the floor."""
        with self._lock:
            generation = self._current
            if generation is not None and generation.revision >= self._floor:
                generation.references += 1
                return generation
        raise NotServing

    def release(self, generation: Generation) -> None:
        """Return a borrowed generation; the last return of a retired one queues its clean-up."""
        with self._lock:
            generation.references -= 1
            unused = generation.retired and generation.references == 0
        if unused:
            self._retire(generation)

    def aim(self, target: Target) -> None:
        """Set what may be installed from now on, and raise the serve floor to the target's."""
        with self._lock:
            self._desired = target
            self._floor = max(self._floor, target.serve_floor)

    def install(self, candidate: Generation) -> bool:
        """Publish a candidate if it is exactly what is desired and newer than what serves.

        Returns whether it serves now; otherwise it is retired without having served.
        """
        with self._lock:
            self._resident[candidate.number] = candidate
            accepted = self._is_wanted(candidate.target)
            outgoing = self._current if accepted else candidate
            if accepted:
                self._current = candidate
                candidate.loaded.has_served = True
            if outgoing is not None:
                outgoing.retire()
            unused = outgoing is not None and outgoing.references == 0
        if outgoing is not None and unused:
            self._retire(outgoing)
        return accepted

    def discard(self, candidate: Generation) -> None:
        """Retire a candidate that will not serve."""
        with self._lock:
            self._resident[candidate.number] = candidate
            candidate.retire()
        self._retire(candidate)

    def holds(self, target: Target) -> bool:
        """Whether `claim` would find the target's model now."""
        with self._lock:
            return any(
                one.loaded.manifest_sha256 == target.manifest_sha256 and not one.loaded.is_staged
                for one in self._resident.values()
            )

    def claim(self, manifest_sha256: str) -> LoadedModel | None:
        """Share a model that is still resident, serving or retired, for one more generation."""
        with self._lock:
            for generation in self._resident.values():
                loaded = generation.loaded
                if loaded.manifest_sha256 == manifest_sha256 and not loaded.is_staged:
                    loaded.generations += 1
                    return loaded
        return None

    def forget(self, generation: Generation) -> LoadedModel | None:
        """Take a retired generation off the books; return its model if no other one shares it."""
        with self._lock:
            del self._resident[generation.number]
            generation.loaded.generations -= 1
            return generation.loaded if generation.loaded.generations == 0 else None

    @property
    def current(self) -> Generation | None:
        """The generation new requests get, for reports; serving code borrows it instead."""
        return self._current

    @property
    def can_serve(self) -> bool:
        """Whether `acquire` would succeed now."""
        with self._lock:
            return self._current is not None and self._current.revision >= self._floor

    def references_to(self, loaded: LoadedModel) -> int:
        """Count the requests that use a model, under whichever generation."""
        with self._lock:
            return sum(one.references for one in self._resident.values() if one.loaded is loaded)

    def is_wanted(self, target: Target) -> bool:
        """Whether a candidate for this target would be installed now."""
        with self._lock:
            return self._is_wanted(target)

    @property
    def has_retired(self) -> bool:
        """Whether a generation that was replaced is still in memory."""
        with self._lock:
            return any(one.retired for one in self._resident.values())

    def hurry_oldest(self) -> None:
        """Let the oldest replaced generation in use go soon, one whose memory nothing else needs."""
        with self._lock:
            serving = self._current.loaded if self._current else None
            for one in self._resident.values():
                if one.retired and one.references and one.loaded is not serving:
                    one.is_hurried = True
                    return

    @property
    def resident(self) -> tuple[Generation, ...]:
        """Every generation whose clean-up has not begun, oldest first."""
        with self._lock:
            return tuple(self._resident.values())

    def _is_wanted(self, target: Target) -> bool:
        desired, current = self._desired, self._current
        return (
            desired is not None
            and desired.revision == target.revision
            and desired.manifest_sha256 == target.manifest_sha256
            and (current is None or target.revision > current.revision)
        )
