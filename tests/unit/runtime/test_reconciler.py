"""How an instance follows its target; its registry and store are in the same process."""

import asyncio
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import candidate_preparer
from runtime.dry_run import dry_run
from weightshift.artifacts.base import blob_key, manifest_key
from weightshift.contracts.instance import CandidatePhase
from weightshift.errors import ObjectStoreUnreachable

DEADLINE = 10.0


async def test_every_phase_is_timed_and_reported(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    target = await world.publish(manifest)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))

        async def is_reported() -> bool:
            report = await world.report()
            return report is not None and report.actual is not None and report.ready

        await world.until(is_reported)
    report = await world.report()
    assert report is not None
    assert report.actual is not None
    assert report.candidate is not None
    assert report.actual.manifest_sha256 == target.manifest_sha256
    assert report.candidate.phase is CandidatePhase.INSTALLED
    assert report.candidate.bytes_done == report.candidate.bytes_total == manifest.total_bytes
    assert report.candidate.peak_memory_bytes
    assert list(report.candidate.phase_seconds) == [
        "waiting",
        "downloading",
        "verifying",
        "loading",
        "dry-running",
        "committing",
    ]


async def test_the_same_content_at_a_higher_revision_is_adopted_without_a_load(
    world: Any, artifacts: Any
) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        first = instance.holder.current
        world.store.objects.clear()
        await world.publish(manifest)
        await world.until(world.serving(instance, 2))
        adopted = instance.holder.current
        assert first is not None
        assert adopted is not None
        assert adopted.loaded is first.loaded
        assert adopted.number > first.number
        await world.until(lambda: len(instance.holder.resident) == 1)
        assert list(adopted.loaded.module.parameters())


async def test_twenty_swaps_leave_one_generation_and_no_old_module(world: Any, artifacts: Any) -> None:
    modules = []
    async with world.running() as instance:
        for revision in range(1, 21):
            await world.publish(artifacts.push(f"v{revision}", seed=revision))
            await world.until(world.serving(instance, revision))
            assert instance.holder.current is not None
            modules.append(weakref.ref(instance.holder.current.loaded.module))
        await world.until(lambda: len(instance.holder.resident) == 1)
        await world.until(lambda: [module() is not None for module in modules] == [False] * 19 + [True])
    kept = [entry.name for entry in (world.root / "artifacts").iterdir()]
    # One more may have been in use when the cache was last cleared.
    assert instance.settings.cache_keep <= len(kept) <= instance.settings.cache_keep + 1


class GatedStore:
    """Passes on, but one artifact's files wait until the gate opens, and may fail a few times."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.slow_key = ""
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def stream(
        self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        if self.failures > 0:
            self.failures -= 1
            raise ObjectStoreUnreachable
        for chunk in self.inner.stream(key, offset=offset, length=length):
            if key == self.slow_key:
                self.entered.set()
                assert self.gate.wait(DEADLINE)
            yield chunk


@pytest.fixture
def gated(world: Any) -> GatedStore:
    store = GatedStore(world.store)
    world.store = store
    return store


async def test_a_newer_target_stops_an_older_download(world: Any, gated: GatedStore, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    slow, quick = artifacts.push("v2", seed=2), artifacts.push("v3", seed=3)
    gated.slow_key = blob_key("ranker", slow.files[0].sha256)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(slow)
        await asyncio.to_thread(gated.entered.wait, DEADLINE)
        await world.publish(quick)

        async def knows_the_newer() -> bool:
            report = await world.report()
            return report is not None and report.desired_revision == 3

        await world.until(knows_the_newer)
        assert world.serving(instance, 1)()
        gated.gate.set()
        await world.until(world.serving(instance, 3))
        assert instance.holder.resident[-1].target.artifact_id == "v3"
    assert not (world.root / "artifacts" / slow.digest()).exists()


async def test_a_load_that_hangs_keeps_no_rollback_to_what_serves(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, hung, end = threading.Event(), threading.Event(), threading.Event()

    def hanging(*arguments: Any, **named: Any) -> Any:
        if hangs.is_set():
            hung.set()
            assert end.wait(3 * DEADLINE)
        return dry_run(*arguments, **named)

    monkeypatch.setattr(candidate_preparer, "dry_run", hanging)
    healthy = artifacts.push("v1", seed=1)
    await world.publish(healthy)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        hangs.set()
        await world.publish(artifacts.push("v2", seed=2))
        await asyncio.to_thread(hung.wait, DEADLINE)
        try:
            await world.publish(healthy)
            await world.until(world.serving(instance, 3))
            assert instance.holder.current.target.artifact_id == "v1"
        finally:
            # The load goes on to its end, late, and changes nothing.
            hangs.clear()
            end.set()
        await world.publish(artifacts.push("v4", seed=4))
        await world.until(world.serving(instance, 4))
        await world.until(lambda: len(instance.holder.resident) == 1)


async def test_a_store_that_comes_back_is_waited_for(world: Any, gated: GatedStore, artifacts: Any) -> None:
    gated.failures = 5
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        candidate = instance.report().candidate
        assert candidate is not None
        assert candidate.attempt == 6


async def test_the_last_error_stays_until_an_attempt_succeeds(
    world: Any, gated: GatedStore, artifacts: Any
) -> None:
    manifest = artifacts.push("v1")
    gated.slow_key = blob_key("ranker", manifest.files[0].sha256)
    gated.failures = 1
    await world.publish(manifest)
    async with world.running() as instance:
        await asyncio.to_thread(gated.entered.wait, DEADLINE)
        again = instance.report().candidate
        assert again is not None
        assert (again.attempt, again.error) == (2, None)
        assert again.last_error is not None
        assert again.last_error.type == "ObjectStoreUnreachable"
        gated.gate.set()
        await world.until(world.serving(instance, 1))
        installed = instance.report().candidate
        assert installed is not None
        assert installed.last_error is None


async def test_a_permanent_failure_waits_for_another_target_or_an_order(world: Any, artifacts: Any) -> None:
    good, broken = artifacts.push("v1"), artifacts.push("v2", seed=2)
    await world.publish(good)
    key = blob_key("ranker", broken.files[0].sha256)
    weights = world.store.objects[key]
    world.store.objects[key] = weights[:-1] + bytes([weights[-1] ^ 1])
    async with world.running() as instance, world.admin_client(instance) as admin:
        await world.until(world.serving(instance, 1))
        await world.publish(broken)

        def has_failed() -> bool:
            candidate = instance.report().candidate
            return candidate is not None and candidate.error is not None

        await world.until(has_failed)
        candidate = instance.report().candidate
        assert candidate is not None
        assert candidate.error is not None
        assert (candidate.error.type, candidate.error.permanent) == ("DigestMismatch", True)
        assert candidate.error.phase is CandidatePhase.DOWNLOADING
        assert world.serving(instance, 1)()
        world.store.objects[key] = weights
        assert (await admin.post("/admin/reconcile")).status_code == 202
        await world.until(world.serving(instance, 2))


async def test_bytes_that_rot_in_the_cache_are_quarantined_and_fetched_again(
    world: Any, artifacts: Any
) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    weights = world.root / "artifacts" / manifest.digest() / manifest.files[0].sha256
    weights.chmod(0o644)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    assert len(list((world.root / "quarantine").iterdir())) == 1


async def test_a_restart_serves_the_last_good_target_while_a_newer_one_fails(
    world: Any, artifacts: Any
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    broken = artifacts.push("v2", weights=b"not weights")
    await world.publish(broken)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        report = instance.report()
        assert report.desired_revision == 2
        assert report.candidate is not None
        assert report.candidate.error is not None
        assert report.candidate.error.type == "UnsafeArtifact"


async def test_a_restart_is_not_ready_before_it_has_caught_up(
    world: Any, gated: GatedStore, artifacts: Any
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    newer = artifacts.push("v2", seed=2)
    gated.slow_key = blob_key("ranker", newer.files[0].sha256)
    await world.publish(newer)
    async with world.running() as instance, world.data_client(instance) as client:
        await asyncio.to_thread(gated.entered.wait, DEADLINE)
        assert (await client.get("/startupz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        gated.gate.set()
        await world.until(world.serving(instance, 2))


async def test_without_registry_and_store_a_restart_serves_from_the_cache(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    world.registry.available = False
    world.store.objects.clear()
    async with world.running(start_wait=0.05) as instance:
        await world.until(world.serving(instance, 1))
        assert instance.report().desired_revision == 1


async def test_a_manifest_that_is_not_there_is_a_permanent_error(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    del world.store.objects[manifest_key("ranker", manifest.digest())]
    await world.publish(manifest)
    async with world.running() as instance:

        def error_type() -> bool:
            candidate = instance.report().candidate
            return candidate is not None and candidate.error is not None

        await world.until(error_type)
        candidate = instance.report().candidate
        assert candidate is not None
        assert candidate.error is not None
        assert (candidate.error.type, candidate.error.permanent) == ("UnknownArtifact", True)
