"""Downloads whose process is killed: the next one goes on, believing nothing of what it finds."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from weightshift.artifacts.base import blob_key
from weightshift.artifacts.file import FileObjectStore
from weightshift.contracts.manifest import Manifest

MODEL = "ranker"
PART = 512
STOP = 8 * PART
# Asked for once the parts before have been written, but for those that are read ahead.
WRITTEN = STOP - 2 * PART
SECONDS = 60
DAY = 24 * 3600

_FETCH = r"""
import os
import sys
from pathlib import Path
from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.range_reader import FetchLimits
from weightshift.artifacts.file import FileObjectStore

root, store, digest, hanging, stop = sys.argv[1:]

class Counting(FileObjectStore):
    def stream(self, key, *, offset=0, **options):
        if key == hanging and offset >= int(stop):
            os.write(1, b"hangs\n")
            sys.stdin.read()
        for piece in super().stream(key, offset=offset, **options):
            # At once, because several threads write.
            os.write(1, f"{key} {len(piece)}\n".encode())
            yield piece

downloader = Downloader(
    store=Counting(root=Path(store)), max_artifact_bytes=1 << 30, limits=FetchLimits(part_bytes=512, ahead=2)
)
cache = ArtifactCache(root=Path(root), downloader=downloader)
cache.sweep()
cache.fetch("ranker", digest, lambda done, total: None).close()
"""


def as_a_service() -> list[str]:
    """Start a command without root's right to write into read-only files, which no service has."""
    if os.geteuid() != 0:
        return []
    if (setpriv := shutil.which("setpriv")) is None:
        pytest.skip("setpriv is not installed")
    return [setpriv, "--bounding-set=-dac_override"]


class Bench:
    """One cache directory, a store that counts its bytes, and processes that fetch from it."""

    def __init__(self, directory: Path, store: Any, artifacts: Any) -> None:
        self.root, self._store = directory / "cache", directory / "store"
        self.incoming = self.root / "incoming"
        last = os.urandom(40 * PART + 1)
        self.manifest: Manifest = artifacts.push(files={"shard.bin": last})
        self.last = self.manifest.files[-1]
        assert self.last.bytes == len(last)
        self.partial = self.incoming / self.manifest.digest() / self.last.sha256
        for key, content in store.objects.items():
            path = self._store / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def start(self, stop: int | None) -> subprocess.Popen[str]:
        hanging = "" if stop is None else blob_key(MODEL, self.last.sha256)
        arguments: list[str | Path] = [self.root, self._store, self.manifest.digest(), hanging, str(stop)]
        return subprocess.Popen(
            [*as_a_service(), sys.executable, "-c", _FETCH, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def hanging(self, stop: int = STOP) -> Iterator[None]:
        """A process in the middle of the last file, killed in the end."""
        with self.start(stop) as process:
            try:
                assert process.stdout is not None
                assert any(line == "hangs\n" for line in process.stdout)
                yield
            finally:
                process.send_signal(signal.SIGKILL)

    def kill_in_mid_file(self, stop: int = STOP) -> None:
        with self.hanging(stop):
            pass

    def fetch(self) -> dict[str, int]:
        """Start again; returns how many bytes of each file the store gave. What is in the cache is right."""
        with self.start(None) as process:
            output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        fetched = dict.fromkeys((file.path for file in self.manifest.files), 0)
        for key, size in (line.split() for line in output.splitlines()):
            for file in self.manifest.files:
                if key == blob_key(MODEL, file.sha256):
                    fetched[file.path] += int(size)
        directory = self.root / "artifacts" / self.manifest.digest()
        for file in self.manifest.files:
            assert hashlib.sha256((directory / file.sha256).read_bytes()).hexdigest() == file.sha256
            assert (directory / file.sha256).stat().st_mode & 0o777 == 0o444
        return fetched

    def cache(self) -> ArtifactCache:
        store = FileObjectStore(root=self._store)
        return ArtifactCache(root=self.root, downloader=Downloader(store=store, max_artifact_bytes=1 << 30))

    def only_last(self, size: int) -> dict[str, int]:
        return dict.fromkeys((file.path for file in self.manifest.files), 0) | {self.last.path: size}


@pytest.fixture
def bench(tmp_path: Path, store: Any, artifacts: Any) -> Bench:
    return Bench(tmp_path, store, artifacts)


def test_a_killed_download_goes_on_where_it_was(bench: Bench) -> None:
    bench.kill_in_mid_file()
    kept = bench.partial.stat().st_size
    assert WRITTEN <= kept < bench.last.bytes
    assert bench.fetch() == bench.only_last(bench.last.bytes - kept)
    assert list(bench.incoming.iterdir()) == []


def test_killed_again_and_again_it_still_gets_further(bench: Bench) -> None:
    sizes = []
    for stop in (STOP, 2 * STOP, 3 * STOP):
        bench.kill_in_mid_file(stop)
        sizes.append(bench.partial.stat().st_size)
    assert sizes == sorted(set(sizes))
    assert bench.fetch()[bench.last.path] == bench.last.bytes - sizes[-1]


def shorten(path: Path) -> None:
    os.truncate(path, PART + 1)


def lengthen(path: Path) -> None:
    os.truncate(path, 1 << 20)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[PART] ^= 1
    path.write_bytes(content)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def hard_link(path: Path) -> None:
    os.link(path, path.parents[2] / "alias")


@pytest.mark.parametrize("damage", [shorten, lengthen, flip, link, hard_link])
def test_a_changed_partial_costs_that_file_and_no_failure(
    bench: Bench, damage: Callable[[Path], None]
) -> None:
    bench.kill_in_mid_file()
    damage(bench.partial)
    fetched = bench.fetch()
    assert fetched[bench.last.path] > bench.last.bytes - WRITTEN
    assert fetched == bench.only_last(fetched[bench.last.path])
    assert list(bench.incoming.iterdir()) == []


def test_a_starting_process_leaves_alone_what_another_one_is_at(bench: Bench) -> None:
    with bench.hanging():
        with bench.hanging(2 * STOP):
            assert len(list(bench.incoming.iterdir())) == 2
        # The second one had a directory of its own, which the next start removes.
        bench.cache().sweep()
        assert list(bench.incoming.iterdir()) == [bench.partial.parent]
        assert bench.fetch()[bench.last.path] == bench.last.bytes
    bench.cache().sweep()
    assert list(bench.incoming.iterdir()) == []


def test_the_first_ones_download_goes_on_beside_a_second_process(bench: Bench) -> None:
    with ExitStack() as second:
        with bench.hanging():
            second.enter_context(bench.hanging())
        kept = bench.partial.stat().st_size
        assert bench.fetch() == bench.only_last(bench.last.bytes - kept)
        assert len(list(bench.incoming.iterdir())) == 1


def leave(bench: Bench, name: str, *, hours: float) -> Path:
    """A download that stopped some hours ago."""
    partial = bench.incoming / name
    partial.mkdir(parents=True)
    (partial / "blob").write_bytes(b"some")
    then = time.time() - hours * 3600
    for path in (partial / "blob", partial):
        os.utime(path, (then, then))
    return partial


@pytest.mark.parametrize("tidy", [ArtifactCache.sweep, lambda cache: cache.collect((), newest=2)])
def test_of_stopped_downloads_only_the_latest_is_kept_and_for_a_day(
    bench: Bench, tidy: Callable[[ArtifactCache], None]
) -> None:
    leave(bench, "a" * 64, hours=3)
    latest = leave(bench, "b" * 64, hours=2)
    (bench.incoming / ("c" * 64)).symlink_to(latest)
    tidy(bench.cache())
    assert list(bench.incoming.iterdir()) == [latest]
    # Its directory is as old as its first file; what counts is the last byte.
    os.utime(latest, (0, 0))
    tidy(bench.cache())
    assert list(bench.incoming.iterdir()) == [latest]
    os.utime(latest / "blob", (0, time.time() - DAY))
    tidy(bench.cache())
    assert list(bench.incoming.iterdir()) == []


def test_what_is_complete_needs_no_stopped_download(bench: Bench) -> None:
    bench.fetch()
    leave(bench, bench.manifest.digest(), hours=0)
    bench.cache().sweep()
    assert list(bench.incoming.iterdir()) == []


async def test_an_instance_that_is_restarted_in_a_download_goes_on(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = artifacts.push("v1"), artifacts.push("v2", seed=2)
    weights, *_, last = second.files
    arrived, hangs, may_go_on = [0], threading.Event(), threading.Event()
    inner = world.store.stream

    def stream(key: str, **options: Any) -> Iterator[bytes]:
        # Small files have been read once, to check them, before the download.
        if key == blob_key(MODEL, last.sha256) and arrived[0]:
            hangs.set()
            may_go_on.wait(SECONDS)
        for piece in inner(key, **options):
            arrived[0] += len(piece) if key == blob_key(MODEL, weights.sha256) else 0
            yield piece

    monkeypatch.setattr(world.store, "stream", stream)
    await world.publish(first)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(second)
        await world.until(hangs.is_set)
    may_go_on.set()
    async with world.running() as instance:
        await world.until(world.serving(instance, 2))
    assert arrived == [weights.bytes]
    assert list((world.root / "incoming").iterdir()) == []
