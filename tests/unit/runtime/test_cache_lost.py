"""What an instance relies on in its cache while the cache is removed, turns read-only or is shared."""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.signatures import SignatureCache
from weightshift.artifacts.base import signature_key
from weightshift.contracts.manifest import Manifest


async def test_a_removed_cache_is_made_anew_and_status_answers_meanwhile(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance, world.admin_client(instance) as admin:
        await world.until(world.serving(instance, 1))
        shutil.rmtree(world.root)
        assert (await admin.get("/admin/status")).status_code == 200
        second = artifacts.push("v2", seed=2)
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        assert second.digest() in instance.tiers()


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_nothing_keeps_no_signature_from_being_used(
    world: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    cache = SignatureCache(directory=world.root / "signatures", store=world.store)
    digest = hashlib.sha256(b"signature").hexdigest()
    world.store.put_bytes(signature_key("ranker", digest), b"signature")
    cache.fetch("ranker", digest)

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(world.store, "stream", lambda *_, **__: pytest.fail("the copy is good"))
    assert cache.fetch("ranker", digest) == b"signature"


def test_a_signature_that_cannot_be_kept_is_used_all_the_same(world: Any) -> None:
    cache = SignatureCache(directory=world.root / "signatures", store=world.store)
    digest = hashlib.sha256(b"signature").hexdigest()
    world.store.put_bytes(signature_key("ranker", digest), b"signature")
    shutil.rmtree(world.root / "signatures")
    (world.root / "signatures").write_bytes(b"in the way")
    assert cache.fetch("ranker", digest) == b"signature"


@pytest.fixture
def create(world: Any) -> Callable[[], ArtifactCache]:
    downloader = Downloader(store=world.store, max_artifact_bytes=1 << 30)
    return lambda: ArtifactCache(root=world.root, downloader=downloader)


async def test_the_way_back_is_kept_whatever_the_clock_once_said(
    world: Any, artifacts: Any, create: Callable[[], ArtifactCache]
) -> None:
    first, second, stale, *others = (artifacts.push(f"v{n}", seed=n) for n in range(1, 6))
    cache = create()

    def put(manifest: Manifest, time: int) -> None:
        cache.fetch("ranker", manifest.digest(), lambda *_: None).close()
        os.utime(world.root / "artifacts" / manifest.digest(), (time, time))

    for other in others:
        put(other, 1 << 32)
    await world.publish(first)
    async with world.running(cache_keep=2) as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(second)
        await world.until(world.serving(instance, 2))
        await world.until(lambda: len(instance.holder.resident) == 1)
        put(stale, 0)
        # A relabelling collects again, now that the first model has been disposed of.
        await world.publish(second)
        await world.until(lambda: stale.digest() not in cache.digests())
    assert {first.digest(), second.digest()} <= set(cache.digests())


def test_what_one_process_relies_on_no_other_one_removes(
    artifacts: Any, create: Callable[[], ArtifactCache]
) -> None:
    manifests = [artifacts.push(f"v{n}", seed=n) for n in (1, 2)]
    ours, theirs = create(), create()
    for manifest in manifests:
        ours.fetch("ranker", manifest.digest(), lambda *_: None).close()
    ours.collect([manifests[0].digest()], newest=2)
    theirs.collect([], newest=0)
    assert theirs.digests() == [manifests[0].digest()]
    ours.collect([], newest=2)
    theirs.collect([], newest=0)
    assert theirs.digests() == []
