"""Telling a process from a later one that got the same number."""

import os
from pathlib import Path

from weightshift.contracts.base import Message


class ProcessIdentity(Message):
    """A process: its id, and when it started in clock ticks since boot."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return identity_of(self.pid) == self


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the process that has this id now; None when there is none, or only its remains."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, so count from its end.
    fields = content.rpartition(")")[2].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else ProcessIdentity(pid=pid, started=started)


def own_identity() -> ProcessIdentity:
    """Return the calling process."""
    identity = identity_of(os.getpid())
    if identity is None:
        raise OSError("/proc does not show this process; mount procfs")
    return identity
