"""At 100 % the real Envoy gives stable something to be compared with, while every answer is checked."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.injection import canary_with, pair, until_served, until_split, within
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome
from weightshift.local.live_service import LiveService, live_service

ENDED_SECONDS = 90.0
JUDGED = Plan.model_validate(
    {
        "stages": [50, 100],
        "window": "3s",
        "interval": 1,
        "max_window": "10m",
        "min_samples": 10,
        "retain": 0,
        "gates": [
            {"metric": "error_rate", "maximum": 0.3},
            # A small, shared machine is noisy: the limits are wide, and what is slow is far beyond them.
            {"metric": "latency", "ratio": 2.0, "quantile": 0.9, "margin": 0.4},
        ],
    }
)
LONG_AT_FULL_WEIGHT = Plan.model_validate(
    {**JUDGED.model_dump(mode="json"), "stages": [50, {"weight": 100, "window": "5m"}]}
)
"""Time enough for a canary to turn bad before it could have passed."""
HOLDING_BACK = Plan.model_validate({**JUDGED.model_dump(mode="json"), "control": "holdback"})

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveService]:
    """A whole stack with v41 released and v42 ready."""
    async with live_service(tmp_path_factory.mktemp("live")) as service:
        yield service


async def stable_judged(live: LiveService, release_id: str) -> int:
    """How many requests of stable, copies or held back, the last judgement at 100 % counted."""
    rows = await live.registry.audit(live.stack.service, release_id)
    judged = [row.data for row in rows if row.data.get("stage", {}).get("weight") == 100]
    count: int = judged[-1]["verdict"]["stable_requests"]
    return count


async def test_a_healthy_canary_is_promoted_by_comparison_at_full_weight(live: LiveService) -> None:
    serving, other = await pair(live)
    async with live.traffic(serving, other), within(ENDED_SECONDS):
        status = await live.release(other, JUDGED)
    assert (status.outcome, str(status.split)) == (Outcome.PROMOTED, "100/0")
    assert any("5 % mirrored to stable" in step.text for step in status.steps)
    assert await stable_judged(live, status.release_id) > 0


async def test_a_share_held_back_is_answered_by_stable_and_compared_with(live: LiveService) -> None:
    serving, other = await pair(live)
    async with live.traffic(serving, other), within(ENDED_SECONDS):
        status = await live.release(other, HOLDING_BACK)
    assert (status.outcome, str(status.split)) == (Outcome.PROMOTED, "100/0")
    assert any("but for 5 % that stay on stable" in step.text for step in status.steps)
    rows = await live.registry.audit(live.stack.service, status.release_id)
    carried = [one["split"]["canary"] for row in rows for one in row.data.get("splits", ())]
    assert carried == [50, 95, 100, 0], "stable is idle while it swaps"
    assert await stable_judged(live, status.release_id) > 0


async def test_a_canary_that_degrades_only_at_full_weight_is_caught_by_the_copies(
    live: LiveService, tmp_path: Path
) -> None:
    switch = tmp_path / "is-slow"
    slow = {
        "WEIGHTSHIFT_RUNTIME_ARCHITECTURES": "slow_ranker:SlowRanker",
        "PYTHONPATH": str(Path(__file__).parent),
        "IS_SLOW": str(switch),
    }
    serving, other = await pair(live)
    async with canary_with(live, serving, slow), live.traffic(serving, other):
        await live.start(other, LONG_AT_FULL_WEIGHT)
        await until_split(live, 100)
        switch.touch()
        async with within(ENDED_SECONDS):
            result = await live.ended()
        switch.unlink()
        assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
        await until_served(live, serving, "canary")
    assert "gate p90 ratio 2 breached" in result.reason
    assert await stable_judged(live, result.release_id) > 0
