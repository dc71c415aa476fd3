"""The file an Envoy reads its split from, with the fence of the command that wrote it."""

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Self

from weightshift.contracts.identity import Cohort
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable
from weightshift.mesh.envoy_config import parse_route_file, route_file
from weightshift.mesh.fencing import require_current, require_expected


class RouteFile:
    """Accepts commands in the order of their fences, for one writer at a time.

    The fence lives in the file itself, so that it survives whoever wrote it. Blocking.
    """

    def __init__(self, *, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.new")
        self._lock = threading.Lock()
        self._writer: int | None = None

    def __enter__(self) -> Self:
        """Become the file's only writer, and make it when there is none: everything on stable.

        Raises `MeshUnreachable` when another process writes it, or when its content is not ours.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = os.open(
            self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600
        )
        try:
            fcntl.flock(self._writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise MeshUnreachable(f"{self._path} has another writer; stop the other mesh agent") from None
        if self._path.exists():
            self.accepted()
        else:
            self._replace(MeshState(split=TrafficSplit.all_to(Cohort.STABLE)))
        return self

    def __exit__(self, *_: object) -> None:
        """Let another process write the file."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None

    def accepted(self) -> MeshState:
        """Return the newest accepted command. Raises `MeshUnreachable` when the file is not ours."""
        try:
            return parse_route_file(json.loads(self._path.read_bytes()))
        except (OSError, ValueError) as error:
            raise MeshUnreachable(
                f"{self._path} cannot be read ({error}); remove it and start again"
            ) from error

    def accept(self, command: MeshState, *, expected: MeshState | None = None) -> None:
        """Write a command, unless a newer one was accepted or the file is not as expected.

        A repeat writes the same bytes again: harmless, and it wakes an Envoy that missed the first.
        Raises `StaleFence`, `MeshDrift`.
        """
        with self._lock:
            accepted = self.accepted()
            require_current(accepted, command)
            require_expected(accepted, command, expected)
            self._replace(command)

    def _replace(self, state: MeshState) -> None:
        with self._temporary.open("w") as file:
            file.write(json.dumps(route_file(state)))
            file.flush()
            os.fsync(file.fileno())
        self._temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            # A fence that a power cut could take back would let an older command through.
            os.fsync(directory)
        finally:
            os.close(directory)
