"""Reading a cached file once, in order, while hashing every byte of it."""

import hashlib
import os
from collections.abc import Iterable
from typing import Self

from runtime.cached_artifact import CachedArtifact
from runtime.recorded_file import Span
from weightshift.contracts.manifest import ManifestFile
from weightshift.errors import DigestMismatch

_PIECE_BYTES = 4 << 20


class HashingReader:
    """What `fill` returned can be trusted once `finish` has not raised. Use it in a `with` block.

    `parsed` is what somebody has read of the file already and goes by: it must be what is hashed.
    """

    def __init__(self, cached: CachedArtifact, file: ManifestFile, parsed: Iterable[Span]) -> None:
        self._cached = cached
        self._file = file
        self._hasher = hashlib.sha256()
        self._offset = 0
        self._ahead = sorted(parsed, reverse=True)
        self._begun: list[Span] = []
        self._descriptor = -1

    def skip_to(self, offset: int) -> None:
        """Hash everything up to `offset`, which no tensor needs."""
        while self._offset < offset:
            self.fill(memoryview(bytearray(min(_PIECE_BYTES, offset - self._offset))))

    def fill(self, target: memoryview) -> None:
        """Read the next bytes into memory, in pieces.

        Raises `DigestMismatch` when the file ends early or is not what was parsed.
        """
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            if os.preadv(self._descriptor, [piece], self._offset) != len(piece):
                raise DigestMismatch(f"{self._file.path} became shorter while it was read.")
            self._hasher.update(piece)
            self._compare(piece)
            self._offset += len(piece)

    def _compare(self, piece: memoryview) -> None:
        """See that what was parsed of these bytes, which begin at the offset, is what they are."""
        begin, end = self._offset, self._offset + len(piece)
        while self._ahead and self._ahead[-1][0] < end:
            self._begun.append(self._ahead.pop())
        for start, content in self._begun:
            first = max(start, begin)
            part = content[first - start : end - start]
            if piece[first - begin :][: len(part)] != part:
                raise self._changed()
        self._begun = [span for span in self._begun if span[0] + len(span[1]) > end]

    def finish(self) -> None:
        """Hash the rest of the file. Raises `DigestMismatch` unless all of it is as the manifest says."""
        self.skip_to(self._file.bytes)
        if self._begun or any(content for _, content in self._ahead):
            # It was longer when it was parsed.
            raise self._changed()
        if self._hasher.hexdigest() != self._file.sha256:
            raise DigestMismatch(f"{self._file.path} does not have the SHA-256 of its manifest.")

    def _changed(self) -> DigestMismatch:
        return DigestMismatch(f"{self._file.path} changed while it was read.")

    def __enter__(self) -> Self:
        self._descriptor = self._cached.open_file(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
