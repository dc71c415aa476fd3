"""Reading a cached file once, in order, while hashing every byte of it."""

import hashlib
import os
from typing import Self

from runtime.cached_artifact import CachedArtifact
from weightshift.contracts.manifest import ManifestFile
from weightshift.errors import DigestMismatch

_PIECE_BYTES = 4 << 20


class HashingReader:
    """What `fill` returned can be trusted once `finish` has not raised. Use it in a `with` block.

    `head` is the start of the file where somebody has read it already, so that it is hashed as it was read.
    """

    def __init__(self, cached: CachedArtifact, file: ManifestFile, head: bytes) -> None:
        self._cached = cached
        self._file = file
        self._hasher = hashlib.sha256(head)
        self._offset = len(head)
        self._descriptor = -1

    def skip_to(self, offset: int) -> None:
        """Hash everything up to `offset`, which no tensor needs."""
        while self._offset < offset:
            self.fill(memoryview(bytearray(min(_PIECE_BYTES, offset - self._offset))))

    def fill(self, target: memoryview) -> None:
        """Read the next bytes into memory, in pieces. Raises `DigestMismatch` when the file ends early."""
        for start in range(0, len(target), _PIECE_BYTES):
            piece = target[start : start + _PIECE_BYTES]
            if os.preadv(self._descriptor, [piece], self._offset) != len(piece):
                raise DigestMismatch(f"{self._file.path} became shorter while it was read.")
            self._hasher.update(piece)
            self._offset += len(piece)

    def finish(self) -> None:
        """Hash the rest of the file. Raises `DigestMismatch` unless all of it is as the manifest says."""
        self.skip_to(self._file.bytes)
        if self._hasher.hexdigest() != self._file.sha256:
            raise DigestMismatch(f"{self._file.path} does not have the SHA-256 of its manifest.")

    def __enter__(self) -> Self:
        self._descriptor = self._cached.open_file(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
