"""A canary that takes requests and answers none, on the whole stack: what it counts has to stop it."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.injection import CANARY, canary_with, metrics_of, pair, until_served, until_split, within
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome
from weightshift.errors import LocalStackError
from weightshift.local.live_service import LiveService

STOPPED_SECONDS = 45.0
"""From the hang to the end: Envoy's patience is five of them, a few are intervals, the rest the machine's."""

HELD = Plan.model_validate(
    {
        "stages": [50, 100],
        "window": "10m",
        "interval": 1,
        "retain": 0,
        # So wide that nothing but the hard gate acts.
        "gates": [{"metric": "error_rate", "maximum": 0.99}],
    }
)
pytestmark = pytest.mark.slow


@contextlib.contextmanager
def hanging(switch: Path) -> Iterator[None]:
    switch.touch()
    try:
        yield
    finally:
        switch.unlink()


async def test_a_canary_that_hangs_is_rolled_back(live: LiveService, tmp_path: Path) -> None:
    switch = tmp_path / "hangs"
    variables = {
        "WEIGHTSHIFT_RUNTIME_ARCHITECTURES": "hanging_ranker:HangingRanker",
        "PYTHONPATH": str(Path(__file__).parent),
        "IT_HANGS": str(switch),
    }
    serving, other = await pair(live)
    async with canary_with(live, serving, variables):
        # The canary's share of the requests fails, which the traffic tells at its end; none is misrouted.
        with pytest.raises(LocalStackError, match="'misrouted': 0"):
            await stopped_while_it_hangs(live, serving, other, switch)
        await until_served(live, serving, "canary")


async def stopped_while_it_hangs(live: LiveService, serving: str, other: str, switch: Path) -> None:
    async with live.traffic(serving, other, rate=20) as traffic:
        await live.start(other, HELD)
        await until_split(live, 50)
        await traffic.wait_for(lambda figures: other in figures["artifacts"], seconds=20)
        with hanging(switch):
            async with within(STOPPED_SECONDS):
                result = await live.ended()
            counted = await asyncio.gather(*(metrics_of(live, instance) for instance in CANARY))
        assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
        assert "hard" in result.reason
        for text in counted:
            assert re.search(rf'artifact="{other}",code="504",.*\}} [1-9]', text)
