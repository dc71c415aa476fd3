"""Reading an artifact's directory without following it anywhere else."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from weightshift.contracts.manifest import MAX_FILES
from weightshift.errors import InvalidManifest, UnsafeArtifact

_BUFFER_BYTES = 1 << 20
MAX_DEPTH = 4


def list_files(directory: Path) -> tuple[str, ...]:
    """Return the relative paths of every file below a directory, sorted.

    Raises `UnsafeArtifact` for links and special files, `InvalidManifest` for too many files or none.
    """
    found: list[str] = []
    try:
        _descend(directory, "", found)
    except OSError as error:
        raise InvalidManifest(f"{directory} cannot be listed ({error.strerror}); check it.") from error
    if not found:
        raise InvalidManifest(f"{directory} holds no files; name the directory with the weights.")
    return tuple(sorted(found))


def _descend(directory: Path, prefix: str, found: list[str]) -> None:
    with os.scandir(directory) as entries:
        for entry in entries:
            path = prefix + entry.name
            if path.count("/") >= MAX_DEPTH:
                raise InvalidManifest(f"{path!r} is too deep; paths have at most {MAX_DEPTH} segments.")
            if entry.is_dir(follow_symlinks=False):
                _descend(Path(entry.path), f"{path}/", found)
            elif entry.is_file(follow_symlinks=False):
                found.append(path)
            else:
                raise UnsafeArtifact(
                    f"{path!r} is a link or a special file; copy a regular file in its place."
                )
            if len(found) > MAX_FILES:
                raise InvalidManifest(
                    f"{path!r} is one file too many; an artifact holds at most {MAX_FILES}."
                )


@contextmanager
def open_file(directory: Path, path: str) -> Iterator[FileIO]:
    """Open a regular file below a directory; no part of `path` may be a link.

    Raises `UnsafeArtifact`.
    """
    *parents, name = path.split("/")
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            inner = _open_at(folder, parent, os.O_DIRECTORY, path)
            os.close(folder)
            folder = inner
        # Non-blocking, or a named pipe put in the file's place would hang the open.
        descriptor = _open_at(folder, name, os.O_NONBLOCK, path)
    finally:
        os.close(folder)
    with FileIO(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise UnsafeArtifact(f"{path!r} is not a regular file with one link only; copy one in its place.")
        yield file


def _open_at(folder: int, name: str, flags: int, path: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=folder)
    except OSError as error:
        raise UnsafeArtifact(f"{path!r} cannot be opened as a plain file ({error.strerror}).") from error


def hash_file(directory: Path, path: str) -> tuple[str, int]:
    """Return a file's SHA-256 and its size in bytes, of the same pass. Raises `UnsafeArtifact`."""
    digest, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with open_file(directory, path) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return digest.hexdigest(), size
