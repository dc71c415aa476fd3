"""Records histories of the current workflow code: `python -m tests.replay.record NAME …`.

Only new histories are recorded; one that exists is what running releases look like and is never replaced.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from tests.replay.ways_back import WAYS_BACK
from tests.workflow.harness import FAST_PLAN, IN_PLACE, UNJUDGED_PLAN, Harness, time_skipping_server
from tests.workflow.twins import Listener
from weightshift.cluster.memory import MemoryCluster
from weightshift.contracts.control import Control
from weightshift.contracts.plan import Stage, Sticky
from weightshift.contracts.release import Intervention, ReleasePhase, RollbackRequest
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import ApprovalInvalid

HISTORIES = Path(__file__).parent / "histories"


async def promoted(harness: Harness) -> None:
    """Through every stage, parachute and retirement."""
    await harness.release("v42")


async def promoted_by_a_patient_judge(harness: Harness) -> None:
    """Through every stage, with a judge that, like the real one, answers when the window is over."""
    harness.observations.patient = True
    await harness.release("v42", FAST_PLAN.model_copy(update={"window": timedelta(milliseconds=200)}))


async def promoted_with_windows_kept_by_the_judge(harness: Harness) -> None:
    """The same without timers of its own: the judge waits for the window's end."""
    await promoted_by_a_patient_judge(harness)


async def rolled_back_by_signal(harness: Harness) -> None:
    """A signal at 25 %."""
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    await harness.client.signal_rollback(harness.service, RollbackRequest(operator="sre", reason="smells"))
    await harness.result()


async def rolled_back_by_gate(harness: Harness) -> None:
    """A breach at 50 %."""
    harness.observations.outcomes[50] = [StageOutcome.BREACH]
    await harness.release("v42")


async def refused_at_verify(harness: Harness) -> None:
    """Weights that do not fit the architecture."""
    harness.fleet.unfit.add("v42")
    await harness.release("v42")


async def cancelled(harness: Harness) -> None:
    """A cancellation at 5 %."""
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).cancel()
    await harness.result()


async def held_paused_and_promoted_by_hand(harness: Harness) -> None:
    """Inconclusive at 5 %, paused and resumed, the rest of 25 % skipped."""
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE, StageOutcome.HEALTHY]
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    await harness.client.pause(harness.service)
    await harness.client.resume(harness.service)
    await harness.client.promote(harness.service)
    await harness.until_judging(50)
    harness.observations.blocked.clear()
    await harness.result()


async def rolled_back_under_the_parachute(harness: Harness) -> None:
    """Promoted, and taken back while the previous weights are warm."""
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()
    await harness.client.rollback(harness.service, RollbackRequest(reason="late"))
    await harness.result()


async def approved_at_two_gates(harness: Harness) -> None:
    """Two people before any traffic, and one before 50 %; an approval of another release is refused."""
    stages = (Stage(weight=25), Stage(weight=50, approvals=1), Stage(weight=100))
    await harness.start("v42", FAST_PLAN.model_copy(update={"stages": stages, "approvals": 2}))
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.AWAITING_APPROVAL))
    foreign = await harness.give("ada", release_id="another")
    with contextlib.suppress(ApprovalInvalid):
        await harness.client.approve(harness.service, foreign.approval_id)
    await harness.client.pause(harness.service, Intervention(operator="eve"))
    await harness.approve("ada")
    await harness.approve("bob")
    await harness.client.resume(harness.service, Intervention(operator="eve"))

    async def waits_before_50() -> bool:
        return "before 50 %" in (await harness.client.status(harness.service)).waiting_for

    await harness.until(waits_before_50)
    await harness.approve("ada")
    await harness.result()


async def told_of_a_hold_and_a_rollback(harness: Harness) -> None:
    """A channel hears of the start, two stages, a hold, the rollback and the end."""
    harness.channels["releases"] = Listener()
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE, StageOutcome.HEALTHY]
    harness.observations.outcomes[25] = [StageOutcome.BREACH]
    await harness.release("v42", FAST_PLAN.model_copy(update={"notify": ("releases",)}))


async def promoted_in_place(harness: Harness) -> None:
    """Stable swaps in two waves while the canary keeps its share."""
    await harness.release("v42", IN_PLACE)


async def rolled_back_from_the_second_wave(harness: Harness) -> None:
    """One instance of stable has swapped and the other cannot."""
    harness.fleet.unfit.add("stable-1 v42")
    await harness.release("v42", IN_PLACE)


async def first_release(harness: Harness) -> None:
    """Nothing serves yet: the harness has released v41 already."""


async def promoted_on_a_scaled_canary_with_sticky_users(harness: Harness) -> None:
    """The plan asks for pods and for users who stay where they are."""
    changes = {"canary_replicas": 2, "sticky": Sticky.USER}
    await harness.release("v42", FAST_PLAN.model_copy(update=changes))


async def promoted_with_a_mirrored_control_arm(harness: Harness) -> None:
    """At 100 % stable answers copies, and none while it swaps; the canary is judged on meanwhile."""
    await harness.release("v42")


async def promoted_with_a_share_held_back(harness: Harness) -> None:
    """At 100 % stable keeps a share, and nothing while it swaps."""
    await harness.release("v42", FAST_PLAN.model_copy(update={"control": Control.HOLDBACK}))


async def rolled_back_by_a_breach_while_stable_swaps(harness: Harness) -> None:
    """One instance of stable hangs, and the canary that carries everything turns out harmful."""
    harness.fleet.stuck.add("stable-0 v42")
    harness.observations.outcomes[100] = [StageOutcome.HEALTHY, StageOutcome.BREACH]
    await harness.release("v42")


async def rolled_back_while_nobody_answers_for_capacity(harness: Harness) -> None:
    """A registry that is away before a stage is asked again as an activity, which a rollback interrupts."""
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    harness.registry.available = False
    await harness.client.promote(harness.service)
    await harness.client.rollback(harness.service, RollbackRequest(reason="smells"))
    harness.registry.available = True
    await harness.result()


async def paused_across_a_deadline_and_after_a_promotion(harness: Harness) -> None:
    """A pause during a judgement moves its deadline; a stage that was skipped while paused is judged on."""
    harness.observations.blocked.update({5, 25})
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE]
    await harness.start("v42")
    await harness.until_judging(5)
    await harness.client.pause(harness.service)
    await harness.client.resume(harness.service)
    harness.observations.blocked.remove(5)
    await harness.until_judging(25)
    await harness.client.pause(harness.service)
    await harness.client.promote(harness.service)
    await harness.until_in_real_time(harness.watches(25))
    await harness.client.resume(harness.service)
    harness.observations.blocked.clear()
    await harness.result()


PATHS: dict[str, Callable[[Harness], Awaitable[None]]] = WAYS_BACK | {
    path.__name__: path
    for path in (
        promoted,
        promoted_by_a_patient_judge,
        promoted_with_windows_kept_by_the_judge,
        rolled_back_by_signal,
        rolled_back_by_gate,
        refused_at_verify,
        cancelled,
        held_paused_and_promoted_by_hand,
        rolled_back_under_the_parachute,
        approved_at_two_gates,
        promoted_in_place,
        rolled_back_from_the_second_wave,
        told_of_a_hold_and_a_rollback,
        first_release,
        promoted_on_a_scaled_canary_with_sticky_users,
        promoted_with_a_mirrored_control_arm,
        promoted_with_a_share_held_back,
        rolled_back_by_a_breach_while_stable_swaps,
        rolled_back_while_nobody_answers_for_capacity,
        paused_across_a_deadline_and_after_a_promotion,
    )
}


async def record(name: str) -> None:
    """Run one path and write its history."""
    target = HISTORIES / f"{name}.json"
    if target.exists():
        raise SystemExit(f"{target.name} exists and is never replaced; record under a new name")
    async with contextlib.AsyncExitStack() as exits:
        environment = await exits.enter_async_context(time_skipping_server())
        harness = Harness(environment)
        harness.cluster = MemoryCluster()
        await exits.enter_async_context(harness.running())
        await PATHS[name](harness)
        handle = environment.client.get_workflow_handle(harness.service.workflow_id)
        history = await handle.fetch_history()
        target.write_text(history.to_json() + "\n")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        asyncio.run(record(argument))
    # The SDK's own threads may abort an interpreter that shuts down in order.
    sys.stdout.flush()
    os._exit(0)
