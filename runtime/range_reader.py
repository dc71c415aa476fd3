"""Reading one object in ranges, several at a time, and handing them out in order."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weightshift.artifacts.base import ObjectStore
from weightshift.errors import ObjectStoreUnreachable

_PIECE_BYTES = 256 << 10
_ATTEMPTS = 3
_POLL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class FetchLimits:
    """How an object is read: ranges of `part_bytes`, at most `ahead` of them in memory at any time.

    While less than `least_rate` bytes per second arrive for `patience` seconds the store counts as away.
    """

    part_bytes: int = 8 << 20
    ahead: int = 6
    least_rate: int = 64 << 10
    patience: float = 20.0


class RangeReader:
    """Reads `[offset, end)` of an object on threads of its own. Use it in a `with` block, once.

    Memory is bounded by `limits`, whatever the object's size. A range that is cut goes on where it
    stopped, a few times. Threads that hang in the network are left behind; they only ever write to memory.
    """

    def __init__(self, *, store: ObjectStore, key: str, offset: int, end: int, limits: FetchLimits) -> None:
        self._store = store
        self._key = key
        self._end = end
        self._limits = limits
        self._starts = range(offset, end, limits.part_bytes)
        self._changed = threading.Condition()
        self._parts: dict[int, memoryview] = {}
        self._free: list[bytearray] = []
        self._error: Exception | None = None
        self._next = 0
        self._used = 0
        self._landed = 0
        self._is_closed = False

    def __enter__(self) -> "RangeReader":
        for number in range(min(self._limits.ahead, len(self._starts))):
            threading.Thread(target=self._run, name=f"range-{number}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._parts.clear()
            self._free.clear()
            self._changed.notify_all()

    def parts(self, waiting: Callable[[], None]) -> Iterator[memoryview]:
        """Yield the ranges in order, shorter where the object ends early; each is valid until the next.

        `waiting` is called now and then and may raise to stop. Raises `ObjectStoreUnreachable`,
        also when too little arrives, and what the store raises.
        """
        for number in range(len(self._starts)):
            part = self._take(number, waiting)
            yield part
            self._give_back(part)

    def _give_back(self, part: memoryview) -> None:
        with self._changed:
            buffer = part.obj
            assert isinstance(buffer, bytearray)  # noqa: S101  (for the type checker: it came from `_read`)
            self._free.append(buffer)
            self._used += 1
            self._changed.notify_all()

    def _take(self, number: int, waiting: Callable[[], None]) -> memoryview:
        since, landed = time.monotonic(), self._landed
        while True:
            waiting()
            with self._changed:
                is_there = self._changed.wait_for(lambda: self._is_decided(number), _POLL_SECONDS)
                if number in self._parts:
                    return self._parts.pop(number)
                if is_there and self._error is not None:
                    raise self._error
            waited = time.monotonic() - since
            if waited >= self._limits.patience:
                self._check_rate(self._landed - landed, waited)
                since, landed = time.monotonic(), self._landed

    def _is_decided(self, number: int) -> bool:
        return number in self._parts or self._error is not None

    def _check_rate(self, landed: int, seconds: float) -> None:
        if landed < self._limits.least_rate * seconds:
            raise ObjectStoreUnreachable(
                f"The object store sent {landed} bytes in {seconds:.0f} seconds; check the network to it."
            )

    def _run(self) -> None:
        while (number := self._claim()) is not None:
            try:
                part = self._read(self._starts[number])
            except Exception as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            with self._changed:
                if self._is_closed:
                    return
                self._parts[number] = part
                self._changed.notify_all()

    def _claim(self) -> int | None:
        """Wait until another range may be read ahead; return its number, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._next < self._used + self._limits.ahead)
            if self._is_over():
                return None
            self._next += 1
            return self._next - 1

    def _is_over(self) -> bool:
        return self._is_closed or self._error is not None or self._next == len(self._starts)

    def _read(self, start: int) -> memoryview:
        """Return a range in a buffer that is used again and again, so that memory stays flat."""
        with self._changed:
            buffer = self._free.pop() if self._free else bytearray(self._limits.part_bytes)
        part = memoryview(buffer)[: min(len(buffer), self._end - start)]
        filled = 0
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                for piece in self._pieces(start + filled, len(part) - filled):
                    part[filled : filled + len(piece)] = piece
                    filled += len(piece)
            except ObjectStoreUnreachable:
                if attempt == _ATTEMPTS or self._is_closed:
                    raise
            else:
                break
        return part[:filled]

    def _pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """Yield what the store sends, but no more than was asked for, nor after the end."""
        left = length
        pieces = self._store.stream(self._key, chunk_bytes=_PIECE_BYTES, offset=offset, length=length)
        for piece in pieces:
            self._landed += len(piece)
            yield piece[:left]
            left -= min(left, len(piece))
            if left == 0 or self._is_closed:
                return
