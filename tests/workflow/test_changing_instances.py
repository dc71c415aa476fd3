"""Instances that are replaced, or are not ready for a moment, while a release runs."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from tests.workflow.harness import FAST_PLAN, IN_PLACE, UNJUDGED_PLAN, Harness, time_skipping_server
from weightshift.cluster.memory import MemoryCluster
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest

# A wait on instances runs in real time: skipping stops while an activity does.
SOON = {"load_deadline": timedelta(seconds=5)}


@pytest_asyncio.fixture(loop_scope="session")
async def harness() -> AsyncIterator[Harness]:
    async with time_skipping_server() as environment:
        one = Harness(environment)
        one.cluster = MemoryCluster()
        async with one.running():
            yield one


@pytest.mark.parametrize(
    "plan", [FAST_PLAN, UNJUDGED_PLAN, IN_PLACE], ids=["judged", "not judged", "in waves"]
)
async def test_a_stable_pod_that_was_replaced_meanwhile_keeps_no_release(
    harness: Harness, plan: Plan
) -> None:
    harness.fleet.stuck.add("canary-0 v42")
    await harness.start("v42", plan.model_copy(update=SOON))
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.WARMING_UP))
    await harness.fleet.replace("stable-0", by="stable-9")
    harness.fleet.stuck.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED
    assert ("stable-9", "v42") in {(name, artifact) for name, _, artifact in harness.fleet.served}


async def test_a_stable_that_is_too_small_waits_and_says_for_whom(harness: Harness) -> None:
    harness.fleet.stuck.update(("canary-0 v42", "stable-9 v42"))
    await harness.start("v42", UNJUDGED_PLAN.model_copy(update=SOON))
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.WARMING_UP))
    await harness.fleet.replace("stable-0", by="stable-9")
    harness.fleet.stuck.remove("canary-0 v42")
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK
    assert "waiting for what takes the place of stable-0, which is lost, stable-9" in result.reason


async def before_25_percent(harness: Harness) -> None:
    """One canary instance carries traffic and is not ready at the moment when its share is to grow."""
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    harness.fleet.unready.add("canary-0")
    await harness.fleet.follow()
    await harness.client.promote(harness.service)


async def tells(harness: Harness, text: str) -> bool:
    steps = (await harness.client.status(harness.service)).steps
    return any(text in step.text for step in steps)


async def between(harness: Harness, first: str, then: str) -> timedelta:
    """How long after one step another one was told."""
    steps = (await harness.client.status(harness.service)).steps
    before, after = (next(step.at for step in steps if text in step.text) for text in (first, then))
    return after - before


async def test_a_canary_that_is_not_ready_for_a_moment_ends_no_release(harness: Harness) -> None:
    await before_25_percent(harness)
    looked = "canary not ready, looked at again: canary-0 is not ready"
    await harness.until_in_real_time(lambda: tells(harness, looked))
    assert harness.splits()[-1] == "95/5"
    harness.fleet.unready.clear()
    harness.observations.blocked.clear()
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_a_canary_that_stays_unready_is_taken_back(harness: Harness) -> None:
    await before_25_percent(harness)
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "100/0")
    assert result.reason == "canary not ready: canary-0 is not ready"
    assert timedelta(seconds=15) <= await between(harness, "again", "rolling back") < timedelta(seconds=25)


async def test_a_canary_that_leaves_is_not_waited_for(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.fleet.replace("canary-0", by="canary-9")
    await harness.client.promote(harness.service)
    result = await harness.result()
    assert result.reason == "canary not ready: canary-0 is not ready"
    assert await between(harness, "promote: go on", "rolling back") < timedelta(seconds=10)


async def test_a_rollback_does_not_wait_until_a_canary_is_ready(harness: Harness) -> None:
    await before_25_percent(harness)
    await harness.until_in_real_time(lambda: tells(harness, "looked at again"))
    await harness.client.rollback(harness.service, RollbackRequest(reason="smells"))
    assert (await harness.result()).reason == "smells (unknown)"
    assert await harness.serves(Cohort.CANARY, "v41")
