"""Targets as they may arrive: late, twice, out of order, contradicting; and the pace of retries."""

import random
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.backoff import Backoff
from runtime.candidate_preparer import CandidatePreparer
from runtime.instance import Instance
from weightshift.contracts.target import Target


async def published(world: Any, artifacts: Any, count: int) -> list[Target]:
    """Publish targets of as many artifacts, then take the registry away: only the tests deliver."""
    targets = [await world.publish(artifacts.push(f"v{n}", seed=n)) for n in range(1, count + 1)]
    world.registry.available = False
    return targets


async def conflicts(instance: Instance) -> float:
    exposition = (await instance.render_metrics()).decode()
    line = next(
        line for line in exposition.splitlines() if line.startswith("weightshift_target_conflicts_total{")
    )
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("seed", range(4))
async def test_in_whatever_order_targets_arrive_the_highest_serves(
    world: Any, artifacts: Any, seed: int
) -> None:
    targets = await published(world, artifacts, 4)
    delivered = [*targets, *targets]
    random.Random(seed).shuffle(delivered)  # noqa: S311 - an order, no secret
    highest, late = 0, 0
    async with world.running() as instance:
        for target in delivered:
            late += target.revision < highest
            highest = max(highest, target.revision)
            await instance._reconciler.accept(target)
        await world.until(world.serving(instance, 4))
        assert await conflicts(instance) == late
        assert instance.holder.current.target == targets[-1]


async def test_a_lower_revision_is_refused_after_a_restart_too(world: Any, artifacts: Any) -> None:
    old, new = await published(world, artifacts, 2)
    async with world.running() as instance:
        await instance._reconciler.accept(new)
        await world.until(world.serving(instance, 2))
    async with world.running() as again:
        await again._reconciler.accept(old)
        assert await conflicts(again) == 1
        await world.until(world.serving(again, 2))


async def test_the_same_revision_with_another_artifact_is_refused_and_counted(
    world: Any, artifacts: Any
) -> None:
    first, second = await published(world, artifacts, 2)
    forged = second.model_copy(update={"revision": first.revision})
    async with world.running() as instance:
        await instance._reconciler.accept(first)
        await world.until(world.serving(instance, 1))
        await instance._reconciler.accept(forged)
        assert await conflicts(instance) == 1
        assert instance.holder.current.target == first
        assert instance.is_ready


async def test_candidates_are_prepared_one_at_a_time(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = await published(world, artifacts, 6)
    prepare, lock, at_once = CandidatePreparer.prepare, threading.Lock(), []

    def counted(*arguments: Any, **options: Any) -> Any:
        at_once.append(lock.acquire(blocking=False))
        try:
            return prepare(*arguments, **options)
        finally:
            lock.release()

    monkeypatch.setattr(CandidatePreparer, "prepare", counted)
    async with world.running() as instance:
        for target in targets:
            await instance._reconciler.accept(target)
            await instance.reconcile_now()
        await world.until(world.serving(instance, 6))
    assert at_once
    assert all(at_once)


@given(
    initial=st.floats(0.001, 10), factor=st.floats(1, 1000), steps=st.integers(1, 20), seed=st.integers(0, 99)
)
def test_retries_slow_down_to_a_cap_and_never_keep_step(
    initial: float, factor: float, steps: int, seed: int
) -> None:
    random.seed(seed)
    backoff = Backoff(initial=initial, maximum=initial * factor)
    for step in range(steps):
        whole = min(initial * factor, initial * 2**step)
        assert whole / 2 <= backoff.next_delay() <= whole
    backoff.reset()
    assert backoff.next_delay() <= initial
