"""No grant, no swap: an instance that serves goes on to a waved target only while a grant names it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from runtime.compatibility import runtime_build
from weightshift.artifacts.base import blob_key
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.instance import CandidatePhase
from weightshift.contracts.wave import WaveGrant, WaveRequest, WaveRevocation
from weightshift.registry.memory import MemoryRegistry

SERVICE = Service(model="ranker", environment="test")
DEADLINE = 10.0


class Waves:
    """Grants and revokes waves, and counts how often somebody asked for them."""

    def __init__(self, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        self._registry = registry
        self._read = registry.wave_grants
        self._sequence = 0
        self.questions = 0
        monkeypatch.setattr(registry, "wave_grants", self._counted)

    async def grant(self, revision: int, *instance_ids: str) -> None:
        self._sequence += 1
        await self._registry.grant_wave(
            WaveRequest(
                service=SERVICE,
                revision=revision,
                instance_ids=instance_ids,
                lifetime=timedelta(minutes=1),
                fence=Fence(epoch=1, sequence=self._sequence),
                operation_id=f"wave-{self._sequence}",
                release_id="release",
                operator="test",
            )
        )

    async def revoke(self) -> None:
        self._sequence += 1
        await self._registry.revoke_waves(
            WaveRevocation(
                service=SERVICE,
                fence=Fence(epoch=1, sequence=self._sequence),
                operation_id=f"wave-{self._sequence}",
                release_id="release",
                operator="test",
            )
        )

    def asked_again(self, times: int = 3) -> Callable[[], bool]:
        """A condition: that many questions more than up to now."""
        enough = self.questions + times
        return lambda: self.questions >= enough

    async def _counted(self, service: Service) -> tuple[WaveGrant, ...]:
        grants = await self._read(service)
        self.questions += 1
        return grants


@pytest.fixture
def waves(world: Any, monkeypatch: pytest.MonkeyPatch) -> Waves:
    return Waves(world.registry, monkeypatch)


async def test_a_swap_waits_for_a_grant_that_names_the_instance_and_the_revision(
    world: Any, waves: Waves, artifacts: Any
) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    second = artifacts.push("v2", seed=2)
    async with world.running(heartbeat=0.005) as instance:
        await world.until(world.serving(instance, 1))
        assert waves.questions == 0
        await world.publish(second, requires_grant=True)
        await waves.grant(2, "stable-1")
        await waves.grant(1, "stable-0")
        await world.until(waves.asked_again())
        assert instance.is_ready
        report = instance.report()
        assert report.actual is not None
        assert report.candidate is not None
        assert (report.actual.revision, report.candidate.revision) == (1, 2)
        assert report.candidate.phase is CandidatePhase.WAITING
        cached = {entry.name for entry in (world.root / "artifacts").iterdir()}
        assert second.digest() not in cached
        await waves.grant(2, "stable-1", "stable-0")
        await world.until(world.serving(instance, 2))


async def test_the_same_content_is_not_adopted_without_a_grant_either(
    world: Any, waves: Waves, artifacts: Any
) -> None:
    manifest = artifacts.push("v1")
    await world.publish(manifest)
    async with world.running(heartbeat=0.005) as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(manifest, requires_grant=True)
        await world.until(waves.asked_again())
        assert instance.report().actual.revision == 1
        await waves.grant(2, "stable-0")
        await world.until(world.serving(instance, 2))
        await world.until(lambda: len(instance.holder.resident) == 1)


class GatedStore:
    """Lets one object's bytes wait until the gate opens."""

    def __init__(self, inner: Any, slow_key: str) -> None:
        self._inner = inner
        self._slow_key = slow_key
        self.entered = threading.Event()
        self.gate = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def stream(
        self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        for chunk in self._inner.stream(key, offset=offset, length=length):
            if key == self._slow_key:
                self.entered.set()
                assert self.gate.wait(DEADLINE)
            yield chunk


async def test_a_grant_revoked_on_the_way_stops_the_swap(world: Any, waves: Waves, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    second = artifacts.push("v2", seed=2)
    world.store = store = GatedStore(world.store, blob_key("ranker", second.files[0].sha256))
    async with world.running(heartbeat=0.005, retry_initial=0.3, retry_maximum=0.3) as instance:
        await world.until(world.serving(instance, 1))
        await waves.grant(2, "stable-0")
        await world.publish(second, requires_grant=True)
        await asyncio.to_thread(store.entered.wait, DEADLINE)
        await waves.revoke()
        store.gate.set()

        def has_been_stopped() -> bool:
            error = instance.report().candidate.error
            return error is not None and (error.type, error.permanent) == ("GrantWithdrawn", False)

        await world.until(has_been_stopped)
        assert instance.is_ready
        assert instance.report().actual.revision == 1
        # The candidate's model is given back, and the next attempt waits for a wave again.
        await world.until(lambda: len(instance.holder.resident) == 1)
        await world.until(waves.asked_again())
        await waves.grant(2, "stable-0")
        await world.until(world.serving(instance, 2))


async def test_a_newer_target_ends_the_wait(world: Any, waves: Waves, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    async with world.running(heartbeat=0.005) as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2), requires_grant=True)
        await world.until(waves.asked_again(1))
        await world.publish(artifacts.push("v3", seed=3))
        await world.until(world.serving(instance, 3))


async def test_an_instance_that_starts_needs_no_grant(world: Any, waves: Waves, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    await world.publish(artifacts.push("v2", seed=2), requires_grant=True)
    async with world.running() as instance:
        await world.until(world.serving(instance, 2))
    assert waves.questions == 0


async def test_an_instance_that_was_ready_for_nothing_needs_no_grant(
    world: Any, waves: Waves, artifacts: Any
) -> None:
    async with world.running() as instance:
        await world.until(lambda: instance._reconciler.is_settled)
        await world.publish(artifacts.push("v1", seed=1), requires_grant=True)
        await world.until(world.serving(instance, 1))
    assert waves.questions == 0


async def test_while_the_registry_is_away_nobody_swaps(world: Any, waves: Waves, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    async with world.running(heartbeat=0.005) as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2), requires_grant=True)
        await world.until(waves.asked_again(1))
        await waves.grant(2, "stable-9")
        world.registry.available = False
        waits = instance._reconciler._reader.has_grant
        assert not await waits(instance._reconciler._desired)
        assert instance.report().actual.revision == 1
        world.registry.available = True
        await waves.grant(2, "stable-0")
        await world.until(world.serving(instance, 2))


async def test_a_report_tells_memory_the_feature_schema_the_device_and_the_build(
    world: Any, artifacts: Any
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        report = instance.report()
        assert report.feature_schema == instance.holder.current.loaded.feature_schema
        assert 0 < report.memory_used_bytes < report.memory_limit_bytes
        assert (report.device, report.runtime_build) == ("cpu", runtime_build())
