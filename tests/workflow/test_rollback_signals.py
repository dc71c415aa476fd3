"""What counts as the word to go back, and what does not."""

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.workflow.harness import Harness
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest


@pytest.mark.parametrize(
    "arguments",
    [
        [{"why": "no such field", "ticket": 7}],
        [{"reason": 5, "operator": None}],
        [{"reason": "a"}, {"reason": "b"}],
        ["smells"],
        [None],
        [[1, 2]],
        [b"\xff\xff"],
        [{"reason": "a\u0000b" + "x" * 5_000}],
    ],
    ids=lambda arguments: str(arguments)[:30],
)
async def test_a_hand_typed_signal_counts(harness: Harness, arguments: list[object]) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    await handle.signal("rollback", args=arguments)
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "100/0")
    assert "\x00" not in result.reason
    assert len(result.reason) < 2_100


async def test_another_signal_and_an_update_of_another_shape_change_nothing(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    await handle.signal("rolback", "a typo")
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("rollback", args=[{}, {}])
    assert await harness.is_in(ReleasePhase.OBSERVING)
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()


async def test_a_signal_without_any_payload_counts(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).signal("rollback")
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
