"""A file of which every byte that was parsed is kept, to be compared with what is hashed later."""

import io
import os
from typing import TypeAlias

Span: TypeAlias = tuple[int, bytes]
"""Where in a file something was read, and what."""


class RecordedFile(io.RawIOBase):
    """Reads an open file, which stays open. The same read is answered from memory; every span is kept."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._position = 0
        self._read: dict[tuple[int, int], bytes] = {}

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was read, by offset; spans may overlap."""
        return tuple(sorted((offset, content) for (offset, _), content in self._read.items()))

    @property
    def size(self) -> int:
        """How long the file is now, in bytes."""
        return os.fstat(self._descriptor).st_size

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether it can be read anywhere: always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place; raises `ValueError` for one before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start of the file")
        self._position = base + offset
        return self._position

    def readinto(self, target: "memoryview | bytearray") -> int:  # type: ignore[override]
        """Fill `target` from the current place; returns the bytes read, fewer at the end of the file."""
        key = self._position, len(target)
        if key not in self._read:
            self._read[key] = os.pread(self._descriptor, len(target), self._position)
        content = self._read[key]
        target[: len(content)] = content
        self._position += len(content)
        return len(content)
