"""A cache directory that is removed or turns read-only under a running instance."""

import errno
import hashlib
import os
import shutil
from typing import Any

import pytest

from runtime.signatures import SignatureCache
from weightshift.artifacts.base import signature_key


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
