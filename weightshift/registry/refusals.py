"""Refused requests of authenticated clients, written to the audit chain."""

import logging
import time
from collections.abc import Callable
from urllib.parse import quote

from weightshift.contracts.evidence import Refusal
from weightshift.errors import (
    InvalidInput,
    UnknownApproval,
    UnknownArtifact,
    UnknownService,
    WeightshiftError,
)
from weightshift.registry.base import Registry
from weightshift.registry.tokens import Grant

ROWS_PER_MINUTE = 10
"""How many rows one token's holder can add; what is beyond is in the log only."""

_LONGEST_PATH = 300
_ORDINARY = (UnknownApproval, UnknownArtifact, UnknownService)

_logger = logging.getLogger(__name__)


class RefusalRecorder:
    """Records what was refused as wrong or not allowed, so that probing leaves a trace.

    Asking for what is not there is ordinary and leaves none.
    """

    def __init__(self, *, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._recorded: dict[str, tuple[int, int]] = {}

    async def record(self, grant: Grant, *, method: str, path: str, error: InvalidInput) -> None:
        """Record one refusal; it never fails, because the client's answer must not depend on it."""
        if isinstance(error, _ORDINARY) or not self._may_record(grant.subject):
            return
        refusal = Refusal(
            subject=grant.subject,
            role=grant.role,
            method=method,
            # Percent-encoded: it is whatever the client sent, NUL and line ends included.
            path=quote(path, errors="replace")[:_LONGEST_PATH],
            error=type(error).__name__,
        )
        try:
            await self._registry.record_refusal(refusal)
        except WeightshiftError as failure:
            _logger.warning("A refusal was not audited: %s", failure)

    def _may_record(self, subject: str) -> bool:
        minute = int(self._clock() // 60)
        counted_minute, count = self._recorded.get(subject, (minute, 0))
        count = count + 1 if counted_minute == minute else 1
        self._recorded[subject] = minute, count
        return count <= ROWS_PER_MINUTE
