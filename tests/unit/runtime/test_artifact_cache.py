import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from weightshift.artifacts.base import blob_key
from weightshift.contracts.manifest import Manifest
from weightshift.errors import DigestMismatch

MODEL = "ranker"
WEIGHTS = 0


def ignore(done: int, total: int) -> None:
    pass


@pytest.fixture
def make_cache(tmp_path: Path, store: Any) -> Callable[[], ArtifactCache]:
    return lambda: ArtifactCache(
        root=tmp_path, downloader=Downloader(store=store, max_artifact_bytes=1 << 30)
    )


@pytest.fixture
def cache(make_cache: Callable[[], ArtifactCache]) -> ArtifactCache:
    return make_cache()


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def replace_blob(store: Any, manifest: Manifest, change: Callable[[bytes], bytes]) -> None:
    key = blob_key(MODEL, manifest.files[WEIGHTS].sha256)
    store.objects[key] = change(store.objects[key])


def test_a_fetched_artifact_is_complete_read_only_and_fetched_once(
    cache: ArtifactCache, store: Any, artifacts: Any, tmp_path: Path
) -> None:
    manifest = artifacts.push()
    seen: list[tuple[int, int]] = []
    with cache.fetch(MODEL, manifest.digest(), lambda *bytes_: seen.append(bytes_)) as cached:
        assert cached.is_fresh
        assert cached.manifest == manifest
        for file in manifest.files:
            assert hashlib.sha256(cached.read_file(file)).hexdigest() == file.sha256
    assert seen == sorted(seen)
    assert seen[-1] == (manifest.total_bytes, manifest.total_bytes)
    directory = tmp_path / "artifacts" / manifest.digest()
    assert {entry.stat().st_mode & 0o777 for entry in directory.iterdir()} == {0o444}
    assert names(tmp_path / "incoming") == []
    store.objects.clear()
    with cache.fetch(MODEL, manifest.digest(), ignore) as cached:
        assert not cached.is_fresh


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: b"",
        lambda content: bytes([content[0] ^ 1]) + content[1:],
    ],
    ids=["truncated", "oversize", "empty", "one flipped bit"],
)
def test_wrong_bytes_never_reach_the_cache(
    cache: ArtifactCache, store: Any, artifacts: Any, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    manifest = artifacts.push()
    replace_blob(store, manifest, change)
    with pytest.raises(DigestMismatch, match=r"model\.safetensors"):
        cache.fetch(MODEL, manifest.digest(), ignore)
    assert names(tmp_path / "artifacts") == names(tmp_path / "incoming") == []


def test_progress_can_stop_a_download_and_nothing_is_left(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path
) -> None:
    manifest = artifacts.push()

    def stop(done: int, total: int) -> None:
        if done:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.fetch(MODEL, manifest.digest(), stop)
    assert names(tmp_path / "artifacts") == names(tmp_path / "incoming") == []


def rewrite(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: rewrite(directory / "complete", b"\xff\0"),
        lambda directory: (directory / "complete").unlink(),
        lambda directory: rewrite(directory / "manifest.json", b"{}"),
        lambda directory: (directory / "manifest.json").unlink(),
        lambda directory: (
            (directory / "complete").unlink(),
            (directory / "complete").symlink_to("/dev/zero"),
        ),
    ],
    ids=["marker corrupt", "marker missing", "manifest changed", "manifest missing", "marker is a link"],
)
def test_a_damaged_directory_is_quarantined_at_start_and_fetched_anew(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    manifest = artifacts.push()
    cache.fetch(MODEL, manifest.digest(), ignore).close()
    damage(tmp_path / "artifacts" / manifest.digest())
    cache.sweep()
    assert names(tmp_path / "artifacts") == []
    assert len(names(tmp_path / "quarantine")) == 1
    with cache.fetch(MODEL, manifest.digest(), ignore) as cached:
        assert cached.is_fresh


def test_stray_entries_do_not_stop_a_start(cache: ArtifactCache, tmp_path: Path) -> None:
    (tmp_path / "artifacts" / "half-copied").mkdir()
    (tmp_path / "artifacts" / ("a" * 64)).write_bytes(b"a file")
    (tmp_path / "incoming" / "file").write_bytes(b"")
    (tmp_path / "incoming" / "link").symlink_to(tmp_path)
    cache.sweep()
    assert names(tmp_path / "artifacts") == names(tmp_path / "incoming") == []
    assert tmp_path.exists()


def test_a_hard_link_to_a_cached_file_makes_it_unusable(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path
) -> None:
    manifest = artifacts.push()
    weights = manifest.files[WEIGHTS]
    with cache.fetch(MODEL, manifest.digest(), ignore) as cached:
        os.link(tmp_path / "artifacts" / manifest.digest() / weights.sha256, tmp_path / "alias")
        with pytest.raises(DigestMismatch):
            cached.open_file(weights)


def test_the_sweep_spares_a_live_download(cache: ArtifactCache, artifacts: Any, tmp_path: Path) -> None:
    manifest = artifacts.push()
    swept: list[list[str]] = []

    def sweep_meanwhile(done: int, total: int) -> None:
        if done and not swept:
            cache.sweep()
            swept.append(names(tmp_path / "incoming"))

    cache.fetch(MODEL, manifest.digest(), sweep_meanwhile).close()
    assert len(swept[0]) == 1


def test_of_two_publishers_one_wins_and_the_other_uses_its_directory(
    make_cache: Callable[[], ArtifactCache], artifacts: Any, tmp_path: Path
) -> None:
    manifest = artifacts.push()
    both_done = threading.Barrier(2)
    fresh: list[bool] = []

    def fetch() -> None:
        def meet(done: int, total: int) -> None:
            if done == total and not both_done.broken and len(met) < 1:
                met.append(done)
                both_done.wait(10)

        met: list[int] = []
        with make_cache().fetch(MODEL, manifest.digest(), meet) as cached:
            assert cached.read_file(manifest.files[WEIGHTS])
            fresh.append(cached.is_fresh)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fresh) == [False, True]
    assert names(tmp_path / "artifacts") == [manifest.digest()]
    assert names(tmp_path / "incoming") == []


def test_collection_keeps_what_is_pinned_recent_or_being_read(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path
) -> None:
    digests = []
    for number in range(5):
        manifest = artifacts.push(f"v{number}", seed=number)
        cache.fetch(MODEL, manifest.digest(), ignore).close()
        os.utime(tmp_path / "artifacts" / manifest.digest(), (number, number))
        digests.append(manifest.digest())
    pinned, read, collected, *recent = digests
    reading = cache.open(read)
    assert reading is not None
    os.utime(tmp_path / "artifacts" / read, (1, 1))
    with reading:
        cache.collect({pinned}, newest=2)
        assert names(tmp_path / "artifacts") == sorted([pinned, read, *recent])
    cache.collect({pinned}, newest=2)
    assert names(tmp_path / "artifacts") == sorted([pinned, *recent])
    assert cache.open(collected) is None


_KILL_SCRIPT = """
import itertools, os, signal, sys
from pathlib import Path
from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from weightshift.artifacts.file import FileObjectStore

root, store, digest = Path(sys.argv[1]), FileObjectStore(root=Path(sys.argv[2])), sys.argv[3]

downloader = Downloader(store=store, max_artifact_bytes=1 << 30)

def arm(fatal):
    steps = itertools.count(1)
    def dying(call):
        def step(*arguments, **options):
            if next(steps) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)
        return step
    for name in ("open", "mkdir", "fsync", "rename", "close"):
        setattr(os, name, dying(getattr(os, name)))

def fetch(cache):
    with cache.fetch("ranker", digest, lambda done, total: None) as cached:
        for file in cached.manifest.files:
            cached.read_file(file)

for fatal in itertools.count(1):
    cache = ArtifactCache(root=root / str(fatal), downloader=downloader)
    child = os.fork()
    if child == 0:
        arm(fatal)
        fetch(cache)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    cache.sweep()
    left = [entry.name for entry in (root / str(fatal) / "incoming").iterdir()]
    assert left in ([], [digest]), left
    assert list((root / str(fatal) / "quarantine").iterdir()) == []
    fetch(cache)
    assert list((root / str(fatal) / "incoming").iterdir()) == []
    if os.waitstatus_to_exitcode(status) == 0:
        print(fatal - 1)
        break
"""


def test_killed_at_any_step_the_cache_recovers(artifacts: Any, store: Any, tmp_path: Path) -> None:
    manifest = artifacts.push()
    for key, content in store.objects.items():
        path = tmp_path / "store" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    finished = subprocess.run(
        [sys.executable, "-c", _KILL_SCRIPT, tmp_path / "caches", tmp_path / "store", manifest.digest()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) >= 15
