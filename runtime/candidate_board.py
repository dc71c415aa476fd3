"""Which candidate an instance reports: the one under way before one that was refused meanwhile."""

from collections.abc import Callable

from runtime.candidate import CandidateTracker
from weightshift.contracts.instance import CandidatePhase, CandidateProgress, InstanceError
from weightshift.contracts.target import Target
from weightshift.errors import AuthorisationInvalid


class CandidateBoard:
    """The latest attempt at a target that is followed, and the latest target that is not.

    `changed` is called at every change of a phase, `phase_ended` with the seconds of every phase; `is_busy`
    tells whether requests are in progress, for which attempts stand back.
    """

    def __init__(
        self,
        *,
        changed: Callable[[], None],
        phase_ended: Callable[[str, float], None],
        is_busy: Callable[[], bool],
    ) -> None:
        self._changed = changed
        self._phase_ended = phase_ended
        self._is_busy = is_busy
        self._latest: CandidateTracker | None = None
        self._refused: CandidateTracker | None = None

    @property
    def latest(self) -> CandidateProgress | None:
        """How far the latest attempt at a followed target is."""
        return self._latest.progress if self._latest else None

    @property
    def shown(self) -> CandidateProgress | None:
        """What is reported: a refused target once no attempt is under way, otherwise the latest attempt."""
        latest, refused = self._latest, self._refused
        if refused is not None and (latest is None or not latest.is_under_way):
            return refused.progress
        return latest.progress if latest else None

    def begin(self, target: Target, number: int, *, superseded: Callable[[], bool]) -> CandidateTracker:
        """Follow an attempt at a target; it knows what ended the attempt before."""
        before = self.latest
        last_error = before.last_error if before and before.revision == target.revision else None
        self._latest = self._track(target, number, superseded=superseded, last_error=last_error)
        return self._latest

    def refuse(self, target: Target, error: AuthorisationInvalid) -> None:
        """Tell of a target that is not followed, so that whoever published it does not wait for it."""
        self._refused = self._track(target, 1, superseded=lambda: False, last_error=None)
        with self._refused.blaming(CandidatePhase.VERIFYING):
            self._refused.fail(error)

    def accept(self) -> None:
        """Another target is followed from now on: what was refused before it is no news any more."""
        self._refused = None

    def _track(
        self,
        target: Target,
        number: int,
        *,
        superseded: Callable[[], bool],
        last_error: InstanceError | None,
    ) -> CandidateTracker:
        return CandidateTracker(
            target=target,
            attempt=number,
            superseded=superseded,
            is_busy=self._is_busy,
            changed=self._changed,
            phase_ended=self._phase_ended,
            last_error=last_error,
        )
