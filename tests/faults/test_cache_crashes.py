"""The artifact cache killed at each of its durable steps, and on disks that are full."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.manifest import Manifest, Precision, WeightFormat

MODEL = "ranker"
STEPS = 40
SECONDS = 60
FETCH = """
import sys
from pathlib import Path
from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from weightshift.artifacts.file import FileObjectStore

store, root, digest = sys.argv[1:]
downloader = Downloader(store=FileObjectStore(root=Path(store)), max_artifact_bytes=1 << 30)
cache = ArtifactCache(root=Path(root), downloader=downloader)
cache.sweep()
cache.fetch("ranker", digest, lambda done, total: None).close()
"""


class Bench:
    def __init__(self, directory: Path) -> None:
        self.store = directory / "store"
        self.manifest, self.newer = (self._push(directory / artifact_id) for artifact_id in ("v1", "v2"))

    def _push(self, source: Path) -> Manifest:
        source.mkdir()
        for number in range(3):
            (source / f"part-{number}.bin").write_bytes(f"{source.name}-{number}".encode().ljust(300_000))
        manifest = build_manifest(
            source,
            model=MODEL,
            artifact_id=source.name,
            runtime=WeightFormat.SAFETENSORS,
            feature_schema="none",
            precision=Precision.FP32,
        )
        push_artifact(FileObjectStore(root=self.store), source, manifest)
        return manifest

    def cache(self, root: Path) -> ArtifactCache:
        downloader = Downloader(store=FileObjectStore(root=self.store), max_artifact_bytes=1 << 30)
        return ArtifactCache(root=root, downloader=downloader)

    def fetch(self, root: Path, *wrapper: str) -> int:
        command = [*wrapper, sys.executable, "-c", FETCH, str(self.store), str(root), self.manifest.digest()]
        finished = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        return finished.returncode

    def is_complete(self, root: Path) -> bool:
        """Whether the artifact is there with every byte; what is there in part fails the test."""
        cached = self.cache(root).open(self.manifest.digest())
        if cached is None:
            assert not (root / "artifacts" / self.manifest.digest()).exists()
            return False
        with cached:
            for file in cached.manifest.files:
                assert hashlib.sha256(cached.read_file(file)).hexdigest() == file.sha256
        return True


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("artifacts"))


def can_trace() -> bool:
    strace = shutil.which("strace")
    return (
        strace is not None and subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode == 0
    )


needs_strace = pytest.mark.skipif(not can_trace(), reason="strace is not installed or not allowed")


@needs_strace
@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_killed_at_any_durable_step_the_artifact_is_absent_or_complete(
    bench: Bench, tmp_path: Path, call: str
) -> None:
    outcomes = []
    for when in range(1, STEPS):
        root = tmp_path / f"{call}-{when}"
        inject = ("strace", "-f", "-o", os.devnull, "-e", f"inject={call}:signal=SIGKILL:when={when}")
        returned = bench.fetch(root, *inject)
        outcomes.append(bench.is_complete(root))
        if returned == 0:
            break
        assert bench.fetch(root) == 0
        assert bench.is_complete(root)
        assert list((root / "incoming").iterdir()) == []
    else:
        pytest.fail(f"more than {STEPS} calls of {call}")
    assert outcomes[-1]
    assert len(outcomes) > 1


@needs_strace
@pytest.mark.parametrize(("call", "error"), [("fsync", "EIO"), ("fsync", "ENOSPC"), ("rename", "EIO")])
def test_a_disk_that_errs_once_leaves_nothing_and_the_next_attempt_works(
    bench: Bench, tmp_path: Path, call: str, error: str
) -> None:
    inject = ("strace", "-f", "-o", os.devnull, "-e", f"inject={call}:error={error}:when=1")
    assert bench.fetch(tmp_path, *inject) != 0
    assert not bench.is_complete(tmp_path)
    assert list((tmp_path / "incoming").iterdir()) == []
    assert bench.fetch(tmp_path) == 0
    assert bench.is_complete(tmp_path)


@needs_strace
@pytest.mark.parametrize("name", ["complete", "manifest.json"])
def test_a_file_that_a_disk_does_not_give_back_stops_no_start_and_is_fetched_again(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    assert bench.fetch(tmp_path) == 0
    path = str(tmp_path / "artifacts" / bench.manifest.digest() / name)
    inject = ("strace", "-f", "-o", os.devnull, "-P", path, "-e", "inject=read:error=EIO:when=1")
    assert bench.fetch(tmp_path, *inject) == 0
    assert bench.is_complete(tmp_path)
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[Path]:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.fixture(params=["size=600k", "nr_inodes=7"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, request.param) as disk:
        yield disk


def test_a_full_disk_leaves_nothing_and_more_room_is_enough(bench: Bench, small_disk: Path) -> None:
    assert bench.fetch(small_disk) != 0
    assert not bench.is_complete(small_disk)
    assert list((small_disk / "incoming").iterdir()) == []
    subprocess.run(
        ["mount", "-o", "remount,size=10m,nr_inodes=100", str(small_disk)], check=True, capture_output=True
    )
    assert bench.fetch(small_disk) == 0
    assert bench.is_complete(small_disk)


@pytest.mark.parametrize("room_for_one", ["size=1500k", "nr_inodes=13"])
def test_on_a_full_disk_an_old_artifact_makes_room_unless_it_is_needed(
    bench: Bench, tmp_path: Path, room_for_one: str
) -> None:
    def ignore(done: int, total: int) -> None:
        pass

    with mounted(tmp_path, room_for_one) as disk:
        cache = bench.cache(disk)
        old, new = bench.manifest.digest(), bench.newer.digest()
        cache.fetch(MODEL, old, ignore).close()
        cache.pin([old])
        with pytest.raises(OSError, match="No space left"):
            cache.fetch(MODEL, new, ignore)
        assert cache.digests() == [old]
        cache.pin([])
        cache.fetch(MODEL, new, ignore).close()
        assert cache.digests() == [new]
