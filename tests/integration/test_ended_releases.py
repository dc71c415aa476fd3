"""What the client says of releases that ended without a word, on a real Temporal."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.workflow.harness import UNJUDGED_PLAN, Harness
from weightshift.contracts.release import Outcome, ReleaseRequest
from weightshift.errors import ReleaseStuck, ReleaseTerminated, UnknownArtifact, WeightshiftError
from weightshift.local.temporal import temporal_server


@workflow.defn(name="Release")
class BrokenRelease:
    """Stands in for a build that cannot go on with a release."""

    @workflow.run
    async def run(self, request: ReleaseRequest) -> None:
        """Fail as a bug does: the workflow task fails, and the workflow stays."""
        raise RuntimeError("a bug")


@pytest_asyncio.fixture(loop_scope="session")
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with temporal_server(tmp_path) as address:
        client = await Client.connect(address.target, data_converter=pydantic_data_converter)
        yield Harness(WorkflowEnvironment.from_client(client))


async def ended(harness: Harness) -> None:
    await harness.client.wait(harness.service, on_status=lambda status: None)
    # The outcome is known before the last step of the workflow.
    await harness.client.result(harness.service)


def raises(harness: Harness, kind: type[WeightshiftError]) -> Callable[[], Awaitable[bool]]:
    """Return the condition that asking for the status raises this."""

    async def asked() -> bool:
        try:
            # A question that comes before Temporal has given up on the worker is kept waiting.
            async with asyncio.timeout(1):
                await harness.client.status(harness.service)
        except kind:
            return True
        except (WeightshiftError, TimeoutError):
            return False
        return False

    return asked


async def test_a_refused_release_is_remembered_with_its_reason(harness: Harness) -> None:
    async with harness.waiting():
        request = harness.request("v99")
        await harness.client.start(request)
        with pytest.raises(UnknownArtifact):
            await ended(harness)

        async def is_listed() -> bool:
            return bool(await harness.client.refused(harness.service))

        await harness.until_in_real_time(is_listed)
        (record,) = await harness.client.refused(harness.service)
    assert (record.release_id, record.artifact_id) == (request.release_id, "v99")
    assert (record.outcome, record.operator) == (Outcome.REFUSED, "ci")
    assert record.reason == "The registry knows no artifact v99 of ranker; push it first."
    assert await harness.registry.releases(harness.service) == ()


async def test_a_terminated_release_is_told_from_one_that_goes_on(harness: Harness) -> None:
    async with harness.waiting():
        await harness.start("v41", UNJUDGED_PLAN)
        await ended(harness)
        harness.observations.blocked.add(5)
        await harness.start("v42")

        async def is_judged() -> bool:
            return bool(harness.observations.asked)

        await harness.until_in_real_time(is_judged)
        assert await harness.client.refusal(harness.service) is None
        handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
        await handle.terminate(reason="bad advice")
        problem = await harness.client.refusal(harness.service)
        assert isinstance(problem, ReleaseTerminated)
        assert "terminated (bad advice)" in str(problem)
        assert f"release rollback ranker -e {harness.service.environment}" in str(problem)
        with pytest.raises(ReleaseTerminated):
            await harness.client.result(harness.service)


async def test_a_release_whose_worker_fails_says_that_it_is_stuck(harness: Harness) -> None:
    worker = Worker(
        harness.environment.client,
        task_queue=harness.queue,
        workflows=[BrokenRelease],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with worker:
        await harness.start("v42")
        await harness.until_in_real_time(raises(harness, ReleaseStuck))
        with pytest.raises(ReleaseStuck, match="--break-glass"):
            await harness.client.status(harness.service)
