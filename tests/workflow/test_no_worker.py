"""What the client says while no worker runs."""

import pytest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from tests.workflow.harness import Harness, time_skipping_server
from weightshift.contracts.release import RollbackRequest
from weightshift.errors import TemporalUnreachable


async def test_a_rollback_that_nobody_answers_is_recorded_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weightshift.client._ANSWER_SECONDS", 0.5)
    async with time_skipping_server() as environment:
        harness = Harness(environment)
        await harness.start("v42")
        with pytest.raises(TemporalUnreachable, match="the rollback is recorded"):
            await harness.client.rollback(harness.service, RollbackRequest())


async def test_a_worker_that_is_gone_is_told_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object, **__: object) -> None:
        # A development server says so half a minute after the worker's last poll.
        text = "no poller seen for task queue recently, worker may be down"
        raise RPCError(text, RPCStatusCode.FAILED_PRECONDITION, b"")

    monkeypatch.setattr(WorkflowHandle, "query", gone)
    async with time_skipping_server() as environment:
        harness = Harness(environment)
        with pytest.raises(TemporalUnreachable, match="no worker has answered"):
            await harness.client.status(harness.service)
