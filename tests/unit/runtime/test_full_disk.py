"""A disk that old artifacts fill: they make room for a new one, but for those that somebody needs."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from weightshift.contracts.manifest import Manifest

MOST = 4


@pytest.fixture
def create(world: Any) -> Callable[[], ArtifactCache]:
    downloader = Downloader(store=world.store, max_artifact_bytes=1 << 30)
    return lambda: ArtifactCache(root=world.root, downloader=downloader)


@pytest.fixture
def manifests(artifacts: Any) -> list[Manifest]:
    return [artifacts.push(f"v{number}", seed=number) for number in range(1, MOST + 3)]


@pytest.fixture
def small(world: Any, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A disk that takes nothing more while there are `MOST` artifacts; returns where else they count."""
    write, places = os.write, [world.root / "artifacts"]

    def bounded(descriptor: int, content: Any) -> int:
        if sum(len(list(place.iterdir())) for place in places) >= MOST:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", bounded)
    return places


def fetch(cache: ArtifactCache, manifest: Manifest) -> None:
    cache.fetch("ranker", manifest.digest(), lambda *_: None).close()


def digests(*manifests: Manifest) -> list[str]:
    return sorted(manifest.digest() for manifest in manifests)


@pytest.mark.usefixtures("small")
def test_only_what_nobody_needs_makes_room(
    create: Callable[[], ArtifactCache], manifests: list[Manifest]
) -> None:
    ours, theirs = create(), create()
    serving, read, of_others, spare, new, another = manifests
    for manifest in (serving, read, of_others, spare):
        fetch(ours, manifest)
    ours.collect([serving.digest()], newest=MOST)
    theirs.collect([of_others.digest()], newest=MOST)
    with ours.open(read.digest()) or pytest.fail("not in the cache"):
        fetch(ours, new)
        assert ours.digests() == digests(serving, read, of_others, new)
        ours.pin([serving.digest(), new.digest()])
        with pytest.raises(OSError, match="No space left"):
            fetch(ours, another)
    assert ours.digests() == digests(serving, read, of_others, new)


def test_a_corrupt_artifact_is_not_kept_for_people_on_a_full_disk(
    world: Any, small: list[Path], create: Callable[[], ArtifactCache], manifests: list[Manifest]
) -> None:
    small.append(world.root / "quarantine")
    cache = create()
    corrupt, *needed = manifests[:MOST]
    for manifest in (corrupt, *needed):
        fetch(cache, manifest)
    cache.pin(digests(*needed))
    cache.quarantine(corrupt.digest())
    fetch(cache, manifests[MOST])
    assert cache.digests() == digests(*needed, manifests[MOST])


async def test_what_served_before_a_restart_is_nobodys_room(
    world: Any, create: Callable[[], ArtifactCache], manifests: list[Manifest]
) -> None:
    cache = create()
    async with world.running(cache_keep=2) as instance:
        for revision, manifest in enumerate(manifests[:3], start=1):
            await world.publish(manifest)
            await world.until(world.serving(instance, revision))
            await world.until(lambda: len(instance.holder.resident) == 1)
        # By then it has written down what serves, and what served before.
        await world.until(lambda: cache.digests() == digests(*manifests[1:3]))
    # Its process has ended.
    instance._supply._cache.pin(())
    restarted = world.create()
    try:
        cache.collect((), newest=0)
        assert cache.digests() == digests(*manifests[1:3])
    finally:
        await restarted.close()
