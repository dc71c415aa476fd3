"""Pods that a release holds and lets go, and what the cluster says of them before each weight."""

from collections.abc import AsyncIterator, Collection
from datetime import timedelta

import pytest
import pytest_asyncio

from tests.workflow.harness import FAST_PLAN, UNJUDGED_PLAN, Harness, time_skipping_server
from weightshift.cluster.memory import MemoryCluster
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.release import Outcome, RollbackRequest
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import KubernetesUnreachable, NoCanaryCapacity, ScaleRefused
from weightshift.way_back import going_back_key

FOUR = FAST_PLAN.model_copy(update={"canary_replicas": 4})


class FollowedCluster(MemoryCluster):
    """A cluster whose pods are the instances of a simulated fleet."""

    def __init__(self, harness: Harness) -> None:
        super().__init__()
        self._fleet = harness.fleet
        self.most = 0

    async def hold(self, service: Service, cohort: Cohort, replicas: int | None, fence: Fence) -> None:
        await super().hold(service, cohort, replicas, fence)
        self._fleet.scale(cohort, self.pods[cohort])
        self.most = max(self.most, self.pods[cohort])

    async def let_go(
        self, service: Service, cohort: Cohort, fence: Fence, *, keep: Collection[str] = ()
    ) -> None:
        await super().let_go(service, cohort, fence, keep=keep)
        self._fleet.scale(cohort, self.pods[cohort])


class ClusterHarness(Harness):
    """The harness on a cluster."""

    followed: FollowedCluster

    async def told(self) -> list[str]:
        rows = await self.registry.audit(self.service)
        return [row.summary for row in rows]


@pytest_asyncio.fixture(loop_scope="session")
async def harness() -> AsyncIterator[ClusterHarness]:
    async with time_skipping_server() as environment:
        one = ClusterHarness(environment)
        one.cluster = one.followed = FollowedCluster(one)
        async with one.running():
            yield one


async def test_a_canary_gets_its_pods_before_and_gives_them_back_after(harness: ClusterHarness) -> None:
    assert (await harness.release("v42", FOUR)).outcome is Outcome.PROMOTED
    assert harness.followed.most == 4
    assert harness.followed.pods == {Cohort.STABLE: 2, Cohort.CANARY: 2}
    assert harness.followed.kept == {"canary-0", "canary-1"}
    served = {instance for instance, _, artifact in harness.fleet.served if artifact == "v42"}
    assert {f"canary-{number}" for number in range(4)} <= served
    assert "canary scaled: 4 of 4 pods ready, 4 get requests, 0 do not" in await harness.told()


async def test_a_canary_without_any_pod_can_be_released_to() -> None:
    async with time_skipping_server() as environment:
        harness = ClusterHarness(environment)
        harness.cluster = harness.followed = FollowedCluster(harness)
        harness.followed.pods[Cohort.CANARY] = 0
        harness.fleet.scale(Cohort.CANARY, 0)
        async with harness.waiting():
            await harness.start("v41")
            with pytest.raises(NoCanaryCapacity):
                await harness.client.wait(harness.service, on_status=lambda status: None)
            assert (await harness.release("v41", FOUR)).outcome is Outcome.PROMOTED
            assert harness.followed.pods[Cohort.CANARY] == 0


async def test_pods_that_are_not_like_stable_take_no_release_but_a_way_back(
    harness: ClusterHarness,
) -> None:
    assert (await harness.release("v42", FOUR)).outcome is Outcome.PROMOTED
    harness.fleet.devices = {f"stable-{number}": "NVIDIA H200" for number in range(2)}
    await harness.until_in_real_time(harness.fleet.has_reported)
    refused = await harness.release("v43", FOUR)
    assert refused.outcome is Outcome.REFUSED
    assert "stable-0, stable-1 (unknown build on NVIDIA H200)" in refused.reason
    assert harness.followed.pods[Cohort.CANARY] == 2
    back = harness.request("v41", FOUR).model_copy(update={"request_key": going_back_key("R0")})
    await harness.client.start(back)
    assert (await harness.result()).outcome is Outcome.PROMOTED


async def test_pods_go_back_after_a_rollback_too(harness: ClusterHarness) -> None:
    harness.observations.outcomes[25] = [StageOutcome.BREACH]
    assert (await harness.release("v42", FOUR)).outcome is Outcome.ROLLED_BACK
    assert harness.followed.pods[Cohort.CANARY] == 2
    assert not harness.followed.held


async def test_stable_keeps_its_pods_for_as_long_as_a_release_runs(harness: ClusterHarness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    assert harness.followed.held == {Cohort.STABLE: 2}
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()
    assert not harness.followed.held


async def test_unready_pods_keep_traffic_away(harness: ClusterHarness) -> None:
    harness.followed.unready[Cohort.CANARY] = 1
    result = await harness.release("v42")
    assert result.outcome is Outcome.REFUSED
    assert "1 of 2 pods are ready" in result.reason
    assert all(split == "100/0" for split in harness.splits())


async def test_a_cluster_that_refuses_is_told_before_anything_is_published(harness: ClusterHarness) -> None:
    harness.followed.failure = ScaleRefused("deployments/ranker-stable cannot be read")
    await harness.start("v42")
    with pytest.raises(ScaleRefused, match="cannot be read"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    harness.followed.failure = None
    assert (await harness.release("v42")).outcome is Outcome.PROMOTED, "no lock was left behind"


async def test_a_cluster_that_is_away_at_the_end_keeps_no_release(harness: ClusterHarness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42", FOUR)
    await harness.until_judging(5)
    harness.followed.failure = KubernetesUnreachable("told to fail")
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    assert any("canary not scaled down" in text for text in await harness.told())


async def test_what_a_terminated_release_held_is_let_go_by_the_next(harness: ClusterHarness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42", FOUR)
    await harness.until_judging(5)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).terminate()
    assert harness.followed.pods[Cohort.CANARY] == 4
    harness.observations.blocked.clear()
    # The activity that was left behind stops the skipping of time, so nothing may take any.
    without_timers = UNJUDGED_PLAN.model_copy(update={"retain": timedelta()})
    assert (await harness.release("v43", without_timers)).outcome is Outcome.PROMOTED
    assert harness.followed.pods == {Cohort.STABLE: 2, Cohort.CANARY: 2}
    assert not harness.followed.held


async def test_without_a_cluster_pods_cannot_be_asked_for() -> None:
    async with time_skipping_server() as environment, Harness(environment).running() as harness:
        result = await harness.release("v42", FOUR)
        assert result.outcome is Outcome.REFUSED
        assert "WEIGHTSHIFT_CLUSTER_ADAPTER" in result.reason
        assert await harness.serves(Cohort.CANARY, "v41")
