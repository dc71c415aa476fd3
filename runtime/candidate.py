"""How far a candidate is on its way from bytes to a model that serves, as instances report it."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runtime.device_health import is_out_of_memory
from runtime.priority import give_way
from weightshift.contracts.instance import CandidatePhase, CandidateProgress, InstanceError
from weightshift.contracts.target import Target
from weightshift.errors import (
    CandidateError,
    InvalidInput,
    OutOfMemory,
    Superseded,
    WeightshiftError,
)


class CandidateTracker:
    """Where one attempt at a target stands. Written by the loading thread, read by reports.

    `superseded` tells whether a newer target has arrived, `is_busy` whether requests are in progress;
    `changed` is called at every phase change; `last_error` ended the attempt before.
    """

    def __init__(
        self,
        *,
        target: Target,
        attempt: int,
        superseded: Callable[[], bool],
        is_busy: Callable[[], bool],
        changed: Callable[[], None],
        phase_ended: Callable[[str, float], None],
        last_error: InstanceError | None = None,
    ) -> None:
        self._target = target
        self._attempt = attempt
        self._superseded = superseded
        self._is_busy = is_busy
        self._changed = changed
        self._phase_ended = phase_ended
        self._phase = CandidatePhase.WAITING
        self._entered = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._bytes = (0, 0)
        self._peak: int | None = None
        self._error: InstanceError | None = None
        self._last_error = last_error
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
            last_error=self._last_error,
        )

    @property
    def is_under_way(self) -> bool:
        """Whether it will end by itself: what has ended will not, nor what only waits for its wave."""
        return self._phase not in (CandidatePhase.WAITING, CandidatePhase.INSTALLED, CandidatePhase.FAILED)

    def stand_back(self) -> None:
        """Let requests go first for a moment."""
        give_way(self._is_busy)

    def checkpoint(self) -> None:
        """Let requests go first. Raises `Superseded` if a newer target has arrived."""
        self.stand_back()
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
        self._last_error = None
        self._move(CandidatePhase.INSTALLED)

    def fail(self, error: Exception, *, may_pass: bool = False) -> InstanceError:
        """End the attempt; returns the error as it is reported, not permanent if it may pass by itself."""
        described = _describe(error, self._blamed or self._phase)
        self._error = described.model_copy(update={"permanent": False}) if may_pass else described
        self._last_error = self._error
        self._move(CandidatePhase.FAILED)
        return self._error

    def _move(self, phase: CandidatePhase) -> None:
        now = time.monotonic()
        seconds = now - self._entered
        self._seconds = {**self._seconds, self._phase.value: round(seconds, 6)}
        self._phase_ended(self._phase.value, seconds)
        self._phase, self._entered = phase, now
        self._changed()


def _describe(error: Exception, phase: CandidatePhase) -> InstanceError:
    if is_out_of_memory(error):
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
