"""What the client says while no worker runs."""

import pytest

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
