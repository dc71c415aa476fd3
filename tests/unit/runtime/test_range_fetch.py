"""Downloads in ranges: several at a time, in order, within bounds, and on from where they stopped."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.range_reader import FetchLimits, RangeReader
from weightshift.artifacts.base import blob_key
from weightshift.contracts.manifest import Manifest
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, Superseded

MODEL = "ranker"
KEY = "models/ranker/blobs/x"
DEADLINE = 30.0
PART = 512
LIMITS = FetchLimits(part_bytes=PART, ahead=3)


class Store:
    """One object, and how it is given out: `before` is called for every range."""

    def __init__(self, inner: Any, before: Callable[[str, int], object] = lambda key, offset: None) -> None:
        self._inner = inner
        self._before = before
        self._lock = threading.Lock()
        self.offsets: list[tuple[str, int]] = []
        self.open = self.most_open = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def offsets_of(self, key: str) -> list[int]:
        return sorted(offset for asked, offset in self.offsets if asked == key)

    def stream(
        self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        with self._lock:
            self.open += 1
            self.most_open = max(self.open, self.most_open)
            self.offsets.append((key, offset))
        try:
            self._before(key, offset)
            yield from self._inner.stream(key, offset=offset, length=length)
        finally:
            with self._lock:
                self.open -= 1


def read(store: Any, size: int, limits: FetchLimits = LIMITS, offset: int = 0) -> bytes:
    reader = RangeReader(store=store, key=KEY, offset=offset, end=size, limits=limits)
    with reader:
        return b"".join(bytes(part) for part in reader.parts(lambda: None))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    size=st.integers(0, 5_000),
    part=st.integers(1, 2_000),
    ahead=st.integers(1, 5),
    offset=st.integers(0, 5_000),
)
def test_whatever_the_ranges_the_bytes_come_in_order(
    store: Any, size: int, part: int, ahead: int, offset: int
) -> None:
    content = os.urandom(size)
    store.objects[KEY] = content
    # As if a part took no time at all, or a thousand ranges would be read one by one.
    limits = FetchLimits(part_bytes=max(part, size // 50, 1), ahead=ahead)
    assert read(store, size + 1, limits, min(offset, size)) == content[offset:]


def test_ranges_are_read_side_by_side_but_no_more_than_may_be_in_memory(store: Any) -> None:
    store.objects[KEY] = os.urandom(20 * PART)
    barrier = threading.Barrier(LIMITS.ahead)

    def meet(_: str, offset: int) -> None:
        if offset < LIMITS.ahead * PART:
            barrier.wait(DEADLINE)

    slow: Any = Store(store, meet)
    reader = RangeReader(store=slow, key=KEY, offset=0, end=20 * PART, limits=LIMITS)
    with reader:
        parts = reader.parts(lambda: None)
        next(parts)
        # The first is still in use, so that only the others of the first three may have begun.
        assert slow.offsets_of(KEY) == [0, PART, 2 * PART]
        assert sum(len(part) for part in parts) == 19 * PART
    assert slow.most_open == LIMITS.ahead


def test_what_a_store_sends_beyond_a_range_is_not_kept(store: Any) -> None:
    class Endless:
        def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
            while True:
                yield b"x" * 100

    assert read(Endless(), 3 * PART) == b"x" * 3 * PART


def hang(key: str, _: int) -> None:
    if "/blobs/" in key:
        threading.Event().wait(DEADLINE)


def test_a_store_that_sends_too_little_counts_as_away(store: Any) -> None:
    store.objects[KEY] = bytes(PART)
    limits = FetchLimits(part_bytes=PART, ahead=2, least_rate=100, patience=0.05)
    with pytest.raises(ObjectStoreUnreachable, match="sent 0 bytes"):
        read(Store(store, hang), PART, limits)


def test_a_slow_store_that_sends_enough_is_waited_for(store: Any) -> None:
    store.objects[KEY] = os.urandom(PART)
    limits = FetchLimits(part_bytes=PART, ahead=2, least_rate=0, patience=0.01)
    slow = Store(store, lambda key, offset: threading.Event().wait(0.1))
    assert read(slow, PART, limits) == store.objects[KEY]


def test_a_newer_target_stops_a_download_whose_store_hangs(store: Any) -> None:
    store.objects[KEY] = bytes(PART)
    asked = 0

    def superseded() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise Superseded

    hanging: Any = Store(store, hang)
    reader = RangeReader(store=hanging, key=KEY, offset=0, end=PART, limits=LIMITS)
    with reader, pytest.raises(Superseded):
        next(reader.parts(superseded))


class Bench:
    """A cache whose store is cut off after some of an artifact's ranges."""

    def __init__(self, root: Path, store: Any, artifacts: Any) -> None:
        self.root = root
        self.manifest: Manifest = artifacts.push(weights=artifacts.weights(1))
        self.weights = max(self.manifest.files, key=lambda file: file.bytes)
        self.whole = store
        self.key = blob_key(MODEL, self.weights.sha256)

    def cache(self, store: Any) -> ArtifactCache:
        downloader = Downloader(
            store=store, max_artifact_bytes=1 << 30, limits=FetchLimits(part_bytes=PART, ahead=2)
        )
        return ArtifactCache(root=self.root, downloader=downloader)

    def cut(self, after: int) -> Store:
        def end(key: str, offset: int) -> None:
            if key == self.key and offset >= after:
                raise ObjectStoreUnreachable

        return Store(self.whole, end)

    def fetch(self, store: Any) -> None:
        with self.cache(store).fetch(MODEL, self.manifest.digest(), lambda *_: None) as cached:
            for file in cached.manifest.files:
                assert hashlib.sha256(cached.read_file(file)).hexdigest() == file.sha256

    @property
    def partial(self) -> Path:
        return Path(self.root, "incoming", self.manifest.digest(), self.weights.sha256)

    def stop_at(self, after: int) -> None:
        with pytest.raises(ObjectStoreUnreachable):
            self.fetch(self.cut(after))


@pytest.fixture
def bench(tmp_path: Path, store: Any, artifacts: Any) -> Bench:
    return Bench(tmp_path, store, artifacts)


def test_the_next_attempt_goes_on_where_the_last_one_stopped(bench: Bench) -> None:
    bench.stop_at(4 * PART)
    kept = bench.partial.stat().st_size
    assert kept == 4 * PART
    again = Store(bench.whole)
    bench.fetch(again)
    assert again.offsets_of(bench.key)[0] == kept
    assert list((bench.root / "incoming").iterdir()) == []


def test_what_was_left_is_hashed_again_and_not_believed(bench: Bench) -> None:
    bench.stop_at(4 * PART)
    content = bytearray(bench.partial.read_bytes())
    content[PART] ^= 1
    bench.partial.write_bytes(content)
    again = Store(bench.whole)
    bench.fetch(again)
    assert again.offsets_of(bench.key).count(4 * PART) == 2
    assert again.offsets_of(bench.key)[0] == 0


def test_a_store_with_wrong_bytes_is_not_asked_for_ever(bench: Bench) -> None:
    bench.stop_at(4 * PART)
    content = bytearray(bench.whole.objects[bench.key])
    content[-1] ^= 1
    bench.whole.objects[bench.key] = bytes(content)
    with pytest.raises(DigestMismatch):
        bench.fetch(bench.whole)
    assert list((bench.root / "incoming").iterdir()) == []


def test_another_artifact_clears_away_what_was_left(bench: Bench, artifacts: Any) -> None:
    bench.stop_at(4 * PART)
    other = artifacts.push("v2", seed=2)
    bench.cache(bench.whole).fetch(MODEL, other.digest(), lambda *_: None).close()
    assert list((bench.root / "incoming").iterdir()) == []


@pytest.fixture
def first(bench: Bench) -> Iterator[threading.Thread]:
    """Another process's download of the same artifact, which waits in the middle until the test is over."""
    entered, gate = threading.Event(), threading.Event()

    def wait(key: str, offset: int) -> None:
        if key == bench.key and offset == PART:
            entered.set()
            assert gate.wait(DEADLINE)

    thread = threading.Thread(target=bench.fetch, args=(Store(bench.whole, wait),))
    thread.start()
    assert entered.wait(DEADLINE)
    yield thread
    gate.set()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert list((bench.root / "incoming").iterdir()) == []


@pytest.mark.usefixtures("first")
def test_a_second_process_does_not_write_into_the_first_ones_files(bench: Bench) -> None:
    bench.fetch(bench.whole)


@pytest.mark.usefixtures("first")
def test_a_second_process_that_stops_leaves_nothing_that_nobody_would_go_on_with(bench: Bench) -> None:
    bench.stop_at(4 * PART)
    assert list((bench.root / "incoming").iterdir()) == [bench.partial.parent]
