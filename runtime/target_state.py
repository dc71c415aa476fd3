"""What an instance was told to serve, kept across restarts.

Revisions only rise. The highest accepted one is written before it is acted on, so that neither a
restart nor an old message can take an instance back; the last target that served is what it starts
from while the registry is away. A disk that refuses the write is logged and never blocks a rollback.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.workspace import fsync_directory
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target
from weightshift.errors import AuthorisationInvalid, RevisionConflict

_logger = logging.getLogger(__name__)


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    accepted: Target | None = None
    trusted: Target | None = None
    previous: str | None = None


class TargetState:
    """The accepted and the trusted target of one instance's cohort. Blocking; safe from any thread.

    `check` raises for a new target that nobody with the right to do so has authorised.
    """

    def __init__(
        self, *, directory: Path, service: Service, cohort: Cohort, check: Callable[[Target], None]
    ) -> None:
        self._check = check
        self._service = service
        self._cohort = cohort
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{service.environment}~{service.model}~{cohort}.json"
        self._lock = threading.Lock()
        self._saved = self._read()

    @property
    def accepted(self) -> Target | None:
        """The target with the highest revision seen so far."""
        return self._saved.accepted

    @property
    def trusted(self) -> Target | None:
        """The last target that was loaded, dry-run and installed here."""
        return self._saved.trusted

    @property
    def served(self) -> frozenset[str]:
        """The manifest digests of the artifact that served last, and of the one before it, the way back."""
        trusted = self._saved.trusted
        latest = trusted.manifest_sha256 if trusted else None
        return frozenset(filter(None, [latest, self._saved.previous]))

    def accept(self, target: Target) -> bool:
        """Take a target; returns whether that changed the accepted one.

        A renewed authorisation of the same revision replaces the earlier one; one that is not valid is
        ignored. Raises `RevisionConflict` for a lower revision, for another artifact under the same one, and
        for a target of another service or cohort; `AuthorisationInvalid`. A refused one changes nothing.
        """
        if (target.service, target.cohort) != (self._service, self._cohort):
            raise RevisionConflict(
                f"The target is for {target.service} {target.cohort}, not for this instance."
            )
        with self._lock:
            accepted = self._saved.accepted
            if accepted is not None and target.revision < accepted.revision:
                raise RevisionConflict(
                    f"Target revision {target.revision} is older than the accepted {accepted.revision}."
                )
            if accepted is not None and target.revision == accepted.revision:
                if target.manifest_sha256 != accepted.manifest_sha256:
                    raise RevisionConflict(f"Target revision {target.revision} names two artifacts.")
                if target.authorisation == accepted.authorisation or not self._is_valid(target):
                    return False
            else:
                self._check(target)
            trusted = self._saved.trusted
            if trusted is not None and trusted.revision == target.revision:
                trusted = target
            self._save(self._saved.model_copy(update={"accepted": target, "trusted": trusted}))
            return True

    def trust(self, target: Target) -> None:
        """Remember a target that serves now."""
        with self._lock:
            served = self._saved.trusted
            changes: dict[str, object] = {"trusted": target}
            if served is not None and served.manifest_sha256 != target.manifest_sha256:
                changes["previous"] = served.manifest_sha256
            self._save(self._saved.model_copy(update=changes))

    def _is_valid(self, target: Target) -> bool:
        try:
            self._check(target)
        except AuthorisationInvalid:
            return False
        return True

    def _merged(self, own: _Saved) -> _Saved:
        """Return the newest of what is known here and of what another instance wrote to the same cache."""
        try:
            other = _Saved.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return own
        newest = {
            "accepted": _newest(own.accepted, other.accepted),
            "trusted": _newest(own.trusted, other.trusted),
        }
        return own.model_copy(update=newest)

    def _read(self) -> _Saved:
        try:
            return _Saved.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _Saved()
        except ValidationError:
            # A damaged file must not keep the process from starting; the registry knows the target.
            self._path.rename(self._path.with_suffix(f".{uuid.uuid4().hex}.damaged"))
            return _Saved()

    def _save(self, saved: _Saved) -> None:
        self._saved = saved
        temporary = self._path.with_suffix(f".{uuid.uuid4().hex}.new")
        try:
            # Without a lock: whoever is ahead writes again once it serves, and nobody ever waits.
            content = self._merged(saved).model_dump_json().encode()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as target:
                target.write(content)
                target.flush()
                os.fsync(target.fileno())
            temporary.rename(self._path)
            fsync_directory(self._path.parent)
        except OSError as error:
            _logger.error("the accepted target could not be saved: %s", error.strerror)  # noqa: TRY400
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _newest(own: Target | None, other: Target | None) -> Target | None:
    """Return the one with the higher revision; of equal ones the own, whose authorisation may be newer."""
    if own is None or other is None:
        return own or other
    return other if other.revision > own.revision else own
