"""What ends the pause of a swap in place when something in it does not end, and what it consists of."""

import asyncio
import threading
from typing import Any

import pytest
import torch

from runtime.architectures import Ranker
from runtime.pause import PausePhase
from tests.unit.runtime.swap_harness import BODY, LONG, DryRuns, failed

LIMIT = 0.2


class HeldRequests:
    """Requests do not end until `gate` is set; dry-runs are left alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        forward = Ranker.forward

        def held(ranker: Ranker, model: Any, batch: torch.Tensor) -> torch.Tensor:
            if threading.current_thread().name == "executor":
                self.reached.set()
                assert self.gate.wait(LONG)
            return forward(ranker, model, batch)

        monkeypatch.setattr(Ranker, "forward", held)


def of_phases(instance: Any, name: str) -> dict[PausePhase, float]:
    labels = {"model": "ranker", "environment": "test", "cohort": "stable"}
    read = instance.metrics.registry.get_sample_value
    series = f"weightshift_artifact_phase_duration_seconds_{name}"
    return {phase: read(series, {**labels, "phase": phase.value}) for phase in PausePhase}


async def test_requests_that_do_not_end_end_the_pause(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with (
        world.running(swap_mode="in-place", pause_limit=LIMIT, retry_initial=LIMIT) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        requests = HeldRequests(monkeypatch)
        first = asyncio.create_task(client.post("/predict", content=BODY))
        await world.until(requests.reached.is_set)
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(lambda: instance.gate.is_paused)
        second = asyncio.create_task(client.post("/predict", content=BODY))
        error = await failed(world, "SwapTooSlow")
        assert (error.permanent, "still in progress" in error.message) == (False, True)
        assert LIMIT <= instance.gate.last_seconds < LONG
        counts = of_phases(instance, "count")
        assert counts[PausePhase.DRAINING] > 0
        assert counts[PausePhase.COPYING] == counts[PausePhase.DRY_RUNNING] == 0
        requests.gate.set()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        assert first.result().headers["x-weightshift-revision"] == "1"
        await world.until(world.serving(instance, 2))


async def test_a_dry_run_that_hangs_keeps_no_request_and_asks_for_a_restart(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    # Longer than a busy machine may keep the event loop, which is the other reason to restart.
    stall_limit = 15 * LIMIT
    settings = {"swap_mode": "in-place", "pause_limit": LIMIT, "stall_limit": stall_limit}
    async with (
        world.running(**settings, answer_timeout=LIMIT) as instance,
        world.data_client(instance) as client,
    ):
        await world.until(world.serving(instance, 1))
        dry_runs = DryRuns(monkeypatch)
        dry_runs.arm()
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(dry_runs.reached.is_set)
        refused = await client.post("/predict", content=BODY)
        assert (refused.status_code, refused.json()["error"]["type"]) == (504, "AnswerTooLate")
        await world.until(lambda: not instance.is_ready)
        assert instance.gate.is_paused
        await world.until(lambda: not instance.is_live)
        assert instance.gate.lasts >= 2 * LIMIT + stall_limit
        dry_runs.gate.set()
        await world.until(world.serving(instance, 2))
        await world.until(lambda: instance.is_live)


async def test_a_pause_is_timed_by_its_parts(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running(swap_mode="in-place") as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        assert set(of_phases(instance, "count").values()) == {1}
        seconds = of_phases(instance, "sum")
        assert all(seconds[phase] > 0 for phase in PausePhase)
        assert sum(seconds.values()) <= instance.gate.last_seconds
