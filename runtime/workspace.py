"""Directories in which artifacts are put together, and the locks that tell who uses one."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Workspace:
    """A directory this process has locked; an earlier attempt may have left files in it."""

    path: Path
    descriptor: int

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a new directory."""
        path.mkdir()
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        # Another process's sweep may remove the directory before this lock; creating the first
        # file in it then fails, and the attempt is repeated like any other.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Make a directory, or go on in the one there is; None while another process is in it."""
        with suppress(FileExistsError):
            path.mkdir()
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Before it was locked it may have been finished and renamed, or removed.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def close(self, *, keep: bool) -> None:
        """Let go of the directory, and remove it unless it is to be kept or was renamed away."""
        if not keep:
            remove(self.path)
        os.close(self.descriptor)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Try to lock a directory exclusively; yields whether nobody else uses it (files count as free)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        yield path.is_symlink()
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except BlockingIOError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a directory with everything in it, or a file; neither need be there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def last_written(path: Path) -> float:
    """Return when a directory or a file in it was last written, in seconds since 1970; 0 if it is none."""
    if path.is_symlink() or not path.is_dir():
        return 0.0
    try:
        return max(entry.lstat().st_mtime for entry in (path, *path.iterdir()))
    except FileNotFoundError:
        # Its owner has just finished it, or removed it.
        return 0.0


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
