"""A disk that does not give bytes back, and a process that may not or cannot open a file just now."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from tests.unit.runtime.test_state_dict import STATE_DICT, saved
from weightshift.contracts.manifest import Manifest

ALWAYS = 1 << 30


class Disk:
    """Lets calls of the operating system fail, a number of times each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def fail(self, call: str, code: int, *, name: str | None = None, times: int = ALWAYS) -> None:
        """Only calls whose first argument is `name` fail, or all of them."""
        inner, left = getattr(os, call), [times]

        def failing(first: Any, *arguments: Any, **options: Any) -> Any:
            if left[0] and name in (None, first):
                left[0] -= 1
                raise OSError(code, os.strerror(code))
            return inner(first, *arguments, **options)

        self._monkeypatch.setattr(os, call, failing)

    def heal(self) -> None:
        self._monkeypatch.undo()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def fetch(cache: ArtifactCache, manifest: Manifest) -> None:
    cache.fetch("ranker", manifest.digest(), lambda *_: None).close()


@pytest.fixture
def cache(tmp_path: Path, store: Any) -> ArtifactCache:
    return ArtifactCache(root=tmp_path, downloader=Downloader(store=store, max_artifact_bytes=1 << 30))


@pytest.mark.parametrize("code", [errno.EIO, errno.EBADMSG])
@pytest.mark.parametrize("name", ["complete", "manifest.json"])
def test_lost_bytes_stop_no_start_and_are_fetched_again(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path, disk: Disk, code: int, name: str
) -> None:
    manifest = artifacts.push()
    fetch(cache, manifest)
    disk.fail("open", code, name=name, times=1)
    cache.sweep()
    assert names(tmp_path / "artifacts") == []
    assert len(names(tmp_path / "quarantine")) == 1
    fetch(cache, manifest)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM])
def test_what_cannot_be_opened_just_now_is_left_where_it_is(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path, disk: Disk, code: int
) -> None:
    manifest = artifacts.push()
    fetch(cache, manifest)
    disk.fail("open", code, name="complete")
    cache.sweep()
    cache.pin([manifest.digest()])
    with pytest.raises(OSError, match=os.strerror(code)):
        cache.open(manifest.digest())
    disk.heal()
    assert names(tmp_path / "quarantine") == []
    cached = cache.open(manifest.digest())
    assert cached is not None
    cached.close()


def test_a_pipe_in_the_cache_keeps_nobody_waiting(
    cache: ArtifactCache, artifacts: Any, tmp_path: Path
) -> None:
    manifest = artifacts.push()
    fetch(cache, manifest)
    marker = tmp_path / "artifacts" / manifest.digest() / "complete"
    marker.unlink()
    os.mkfifo(marker)
    assert cache.open(manifest.digest()) is None
    assert len(names(tmp_path / "quarantine")) == 1


def as_safetensors(artifacts: Any) -> Any:
    return artifacts.push("v1")


def as_state_dict(artifacts: Any) -> Any:
    return artifacts.push("v1", weights=saved(artifacts.weights(1)), **STATE_DICT)


@pytest.mark.parametrize("push", [as_safetensors, as_state_dict])
@pytest.mark.parametrize("call", ["pread", "preadv"])
async def test_a_way_back_whose_bytes_are_lost_is_fetched_again(
    world: Any, artifacts: Any, disk: Disk, push: Callable[[Any], Any], call: str
) -> None:
    first = push(artifacts)
    await world.publish(first)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        await world.until(lambda: len(instance.holder.resident) == 1)
        disk.fail(call, errno.EIO, times=1)
        await world.publish(first)
        await world.until(world.serving(instance, 3))
        assert instance.report().candidate.attempt == 1
    assert [name.partition(".")[0] for name in names(world.root / "quarantine")] == [first.digest()]


@pytest.mark.parametrize("push", [as_safetensors, as_state_dict])
async def test_a_way_back_whose_header_has_a_flipped_bit_is_fetched_again(
    world: Any, artifacts: Any, push: Callable[[Any], Any]
) -> None:
    first = push(artifacts)
    await world.publish(first)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        await world.until(lambda: len(instance.holder.resident) == 1)
        weights = world.root / "artifacts" / first.digest() / first.files[0].sha256
        content = weights.read_bytes()
        place = content.index(b"head.weight")
        weights.chmod(0o644)
        weights.write_bytes(content[:place] + b"H" + content[place + 1 :])
        await world.publish(first)
        await world.until(world.serving(instance, 3))
    assert [name.partition(".")[0] for name in names(world.root / "quarantine")] == [first.digest()]


async def test_a_way_back_without_descriptors_is_tried_again_from_the_cache(
    world: Any, artifacts: Any, store: Any, disk: Disk
) -> None:
    first = artifacts.push("v1")
    await world.publish(first)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        await world.until(lambda: len(instance.holder.resident) == 1)
        store.objects.clear()
        disk.fail("open", errno.EMFILE, name=first.files[0].sha256, times=2)
        await world.publish(first)
        await world.until(world.serving(instance, 3))
        assert instance.report().candidate.attempt == 3
    assert names(world.root / "quarantine") == []
