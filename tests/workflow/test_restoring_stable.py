"""A way back that has to have stable serve the healthy artifact again first."""

import itertools
from datetime import datetime

from tests.workflow.harness import UNJUDGED_PLAN, Harness
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest


async def test_a_stable_that_cannot_be_restored_is_tried_again_less_and_less_often(harness: Harness) -> None:
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.PROMOTING))
    harness.fleet.unfit.add("stable-0 v41")
    await harness.client.signal_rollback(harness.service, RollbackRequest())

    async def failures() -> list[datetime]:
        steps = (await harness.client.status(harness.service)).steps
        return [step.at for step in steps if "stable not restored yet" in step.text]

    async def failed_often() -> bool:
        return len(await failures()) >= 5

    await harness.until(failed_often)
    pauses = [(later - before).total_seconds() for before, later in itertools.pairwise(await failures())]
    assert [round(pause, -1) for pause in pauses[:4]] == [10, 20, 40, 80]
    harness.fleet.unfit.clear()
    assert (await harness.result()).outcome is Outcome.ROLLED_BACK
