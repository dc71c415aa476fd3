"""A release is followed to its own end, also when another one is started meanwhile."""

import asyncio

import pytest
from temporalio.client import Client, Interceptor, OutboundInterceptor, QueryWorkflowInput

from tests.workflow.harness import Harness
from weightshift.client import ReleaseClient
from weightshift.contracts.release import Outcome, ReleaseStatus, RollbackRequest
from weightshift.errors import ArtifactNotReady


class SlowQueries(Interceptor):
    """Keeps every question from now on until it may be asked."""

    def __init__(self) -> None:
        self.may_ask = asyncio.Event()
        self.may_ask.set()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        slow = self

        class Kept(OutboundInterceptor):
            async def query_workflow(self, input: QueryWorkflowInput) -> object:  # noqa: A002
                await slow.may_ask.wait()
                return await super().query_workflow(input)

        return Kept(next)


async def next_release_is_judged(harness: Harness) -> None:
    """End what is judged at 5 %, by a rollback, and have the next release judged there."""
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
    harness.observations.asked.clear()
    await harness.start("v43")
    await harness.until_judging(5)


async def test_the_release_that_was_started_is_followed_and_no_later_one(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    run_id = await harness.start("v42")
    await harness.until_judging(5)
    await next_release_is_judged(harness)
    async with asyncio.timeout(10):
        end = await harness.client.wait(harness.service, on_status=lambda status: None, run_id=run_id)
    assert (end.artifact_id, end.outcome) == ("v42", Outcome.ROLLED_BACK)


async def test_who_watches_the_newest_release_stays_with_it(harness: Harness) -> None:
    queries = SlowQueries()
    told = harness.environment.client.config()
    told["interceptors"] = [queries]
    watcher = ReleaseClient(client=Client(**told), task_queue=harness.queue)
    seen, first = list[ReleaseStatus](), asyncio.Event()

    def show(status: ReleaseStatus) -> None:
        queries.may_ask.clear()
        seen.append(status)
        first.set()

    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    watching = asyncio.create_task(watcher.wait(harness.service, on_status=show))
    await first.wait()
    await next_release_is_judged(harness)
    queries.may_ask.set()
    async with asyncio.timeout(10):
        end = await watching
    assert (end.artifact_id, end.outcome) == ("v42", Outcome.ROLLED_BACK)
    assert {status.artifact_id for status in seen} == {"v42"}


async def test_an_admission_is_known_as_soon_as_it_is_given_or_refused(harness: Harness) -> None:
    await harness.registry.reject_artifact("ranker", "v43", operator="ci", reason="bad")
    with pytest.raises(ArtifactNotReady):
        await harness.client.admitted(harness.service, await harness.start("v43"))
    harness.observations.blocked.add(5)
    status = await harness.client.admitted(harness.service, await harness.start("v42"))
    assert (status.artifact_id, status.outcome) == ("v42", None)
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()
