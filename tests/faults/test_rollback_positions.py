"""Rollback from where something is on its way or a pool is not whole, on the whole stack, in checked traffic.

From 5 to 100 %, in waves and after the end: `test_acceptance.py`, `test_parts_away.py`, and the tests of
people and waves in `tests/e2e`.
"""

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.faults.holding import (
    candidates_held,
    make_holdable,
    publications_held,
    stopped,
    until_held,
    until_instance_serves,
)
from tests.faults.injection import (
    carried,
    is_answered_by,
    pair,
    until,
    until_served,
    until_split,
    within,
)
from weightshift.contracts.control import Control
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase, ReleaseResult, RollbackRequest
from weightshift.errors import ApprovalInvalid, InvalidInput
from weightshift.local.live_service import AT_ONCE, LiveService
from weightshift.local.traffic_process import TrafficProcess

ENDED_SECONDS = 60.0
SMELLS = RollbackRequest(operator="sre", reason="smells")
HELD_AT_100 = AT_ONCE.model_copy(
    update={
        "stages": Plan.model_validate({"stages": [{"weight": 100, "window": "10m"}]}).stages,
        "gates": Plan.model_validate({"gates": [{"metric": "error_rate", "maximum": 0.3}]}).gates,
    }
)
RETAINED = AT_ONCE.model_copy(update={"retain": Plan.model_validate({"retain": "10m"}).retain})

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(live: LiveService) -> AsyncIterator[LiveService]:
    """The stack, with instances whose candidates can be held."""
    await make_holdable(live, "stable-1", "canary-0")
    yield live


async def until_phase(live: LiveService, phase: ReleasePhase) -> None:
    async def is_there() -> bool:
        return (await live.client.status(live.stack.service)).phase is phase

    await until(is_there)


async def steering_is_refused(live: LiveService) -> None:
    """Neither `promote` nor `approve` means anything here, and both say so and change nothing."""
    service = live.stack.service
    before = await live.client.status(service)
    with pytest.raises(InvalidInput, match=f"nothing to skip while {before.phase}"):
        await live.client.promote(service)
    with pytest.raises(ApprovalInvalid, match="no approval is waited for"):
        await live.client.approve(service, "nobody-gave-it")
    assert await live.client.status(service) == before


async def split_of(live: LiveService) -> str:
    """The split that the mesh is read back to do."""
    return str((await carried(live)).split)


async def splits(live: LiveService, release_id: str) -> list[str]:
    """How traffic moved, from the release's evidence, oldest first; a repeat of a split counts once."""
    rows = await live.registry.audit(live.stack.service, release_id)
    changes = [change["split"] for row in rows for change in row.data.get("splits", ())]
    shares = (f"{split['stable']}/{split['canary']}" for split in changes)
    return [share for share, _ in itertools.groupby(shares)]


async def is_back(live: LiveService, traffic: TrafficProcess, result: ReleaseResult, serving: str) -> None:
    """Everything that a rollback promises, once it has ended."""
    assert (result.outcome, result.reason) == (Outcome.ROLLED_BACK, "smells (sre)")
    assert str(result.split) == await split_of(live) == "100/0"
    status = await live.client.status(live.stack.service)
    assert (status.phase, status.outcome, status.way_back) == (ReleasePhase.DONE, Outcome.ROLLED_BACK, "none")
    for cohort in Cohort:
        await until_served(live, serving, cohort)
    targets = await live.registry.targets(live.stack.service)
    assert targets.stable is not None
    assert targets.canary is not None
    assert {targets.stable.artifact_id, targets.canary.artifact_id} == {serving}
    assert targets.canary.serve_floor == targets.canary.revision, "nothing older may serve on the canary"
    await is_answered_by(traffic, targets.stable.revision)


async def ended(live: LiveService) -> ReleaseResult:
    async with within(ENDED_SECONDS):
        return await live.ended()


async def test_while_the_canary_is_being_published(live: LiveService) -> None:
    service = live.stack.service
    serving, other = await pair(live)
    async with live.traffic(serving) as traffic:
        async with publications_held() as publications:
            await live.start(other, AT_ONCE)
            await publications.until_one_waits()
            status = await live.client.status(service)
            assert (status.phase, status.way_back) == (ReleasePhase.PUBLISHING, "instant")
            await steering_is_refused(live)
            async with within(ENDED_SECONDS):
                answer = await live.client.rollback(service, SMELLS)
            assert str(answer.split) == "100/0", "it waits for no publication"
        await is_back(live, traffic, await ended(live), serving)
    assert await splits(live, answer.release_id) == ["100/0"]


async def test_while_stable_is_being_published(live: LiveService) -> None:
    service = live.stack.service
    serving, other = await pair(live)
    async with live.traffic(serving, other) as traffic:
        await live.start(other, HELD_AT_100)
        await until_split(live, 100)
        async with publications_held() as publications:
            await live.client.promote(service)
            await publications.until_one_waits()
            status = await live.client.status(service)
            assert (status.phase, status.way_back) == (ReleasePhase.PROMOTING, "instant")
            await steering_is_refused(live)
            async with within(ENDED_SECONDS):
                answer = await live.client.rollback(service, SMELLS)
            assert str(answer.split) == await split_of(live) == "100/0", "it waits for no publication"
        await is_back(live, traffic, await ended(live), serving)
    assert (await splits(live, answer.release_id)) == ["0/100", "100/0"]


async def until_half_of_stable_has_swapped(live: LiveService, candidate: str) -> None:
    """`stable-1` is held."""
    await until_instance_serves(live, "stable-0", candidate)
    await until_held(live, "stable-1", candidate)


async def test_while_stable_swaps(live: LiveService) -> None:
    service = live.stack.service
    serving, other = await pair(live)
    async with live.traffic(serving, other) as traffic:
        with candidates_held(live, "stable-1"):
            await live.start(other, AT_ONCE)
            await until_half_of_stable_has_swapped(live, other)
            status = await live.client.status(service)
            assert status.phase is ReleasePhase.PROMOTING
            assert status.way_back.startswith("reload")
            await steering_is_refused(live)
            await live.client.signal_rollback(service, SMELLS)
            # The load that is held keeps stable-1 from nothing that it still has.
            result = await ended(live)
        await is_back(live, traffic, result, serving)
    assert (await splits(live, result.release_id)) == ["0/100", "100/0"]


async def test_while_traffic_returns_to_stable(live: LiveService) -> None:
    service = live.stack.service
    serving, other = await pair(live)
    async with live.traffic(serving, other) as traffic:
        await live.start(other, HELD_AT_100.model_copy(update={"control": Control.NONE}))
        await until_split(live, 100)
        with stopped(live, "mesh-agent"):
            await live.client.promote(service)
            await until_phase(live, ReleasePhase.RETURNING)
            assert (await live.client.status(service)).way_back.startswith("reload")
            await steering_is_refused(live)
            await live.client.signal_rollback(service, SMELLS)
            await until_served(live, serving, "stable")
            assert (await live.client.status(service)).phase is ReleasePhase.ROLLING_BACK
        result = await ended(live)
        await is_back(live, traffic, result, serving)
    assert (await splits(live, result.release_id)) == ["0/100", "100/0"]


async def test_under_the_parachute(live: LiveService) -> None:
    service = live.stack.service
    serving, other = await pair(live)
    async with live.traffic(serving, other) as traffic:
        await until_the_parachute_is_up(live, other)
        with candidates_held(live, "stable-1"):
            async with within(ENDED_SECONDS):
                answer = await live.client.rollback(service, SMELLS)
            assert str(answer.split) == await split_of(live) == "0/100", "the canary is the quick way back"
            canary = (await live.registry.targets(service)).canary
            assert canary is not None
            assert canary.artifact_id == serving
            await is_answered_by(traffic, canary.revision)
            await until_held(live, "stable-1", serving)
        await is_back(live, traffic, await ended(live), serving)
    assert await splits(live, answer.release_id) == ["0/100", "100/0", "0/100", "100/0"]


async def test_while_the_parachute_is_retired(live: LiveService) -> None:
    service = live.stack.service
    serving, other = await pair(live)
    async with live.traffic(serving, other) as traffic:
        await until_the_parachute_is_up(live, other)
        with candidates_held(live, "canary-0"):
            await live.client.promote(service)
            await until_held(live, "canary-0", other)
            status = await live.client.status(service)
            assert (status.phase, status.outcome) == (ReleasePhase.RETIRING, Outcome.PROMOTED)
            assert status.way_back.startswith("reload")
            await steering_is_refused(live)
            async with within(ENDED_SECONDS):
                answer = await live.client.rollback(service, SMELLS)
            assert str(answer.split) == await split_of(live) == "100/0"
            result = await ended(live)
        await is_back(live, traffic, result, serving)
    moves = await splits(live, answer.release_id)
    assert moves == ["0/100", "100/0"], "stable is restored under its traffic"


async def until_the_parachute_is_up(live: LiveService, candidate: str) -> None:
    await live.start(candidate, RETAINED)

    async def is_up() -> bool:
        status = await live.client.status(live.stack.service)
        return status.phase is ReleasePhase.PARACHUTE and status.way_back_until is not None

    await until(is_up, seconds=60)
    assert (await live.client.status(live.stack.service)).way_back == "instant"
