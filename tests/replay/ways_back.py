"""The paths that a release takes back when something else goes wrong too, and around people and pods."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from tests.workflow.harness import FAST_PLAN, UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.plan import OnInconclusive, Promotion, Stage
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.contracts.target import Publication, Target
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import OperationConflict, RouteInvalid, StaleFence, WeightshiftError
from weightshift.way_back import EXPEDITED_PLAN

_ASKED = RollbackRequest(operator="sre", reason="smells")


async def _tells(harness: Harness, text: str) -> bool:
    steps = (await harness.client.status(harness.service)).steps
    return any(text in step.text for step in steps)


async def _under_the_parachute(harness: Harness) -> None:
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()


async def _while_stable_swaps(harness: Harness) -> None:
    """The canary carries everything, and one instance of stable does not come up with v42."""
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", UNJUDGED_PLAN)

    async def is_swapping() -> bool:
        return (await harness.client.status(harness.service)).way_back.startswith("reload")

    await harness.until_in_real_time(is_swapping)


async def _at_25_percent(harness: Harness) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)


async def _reject(harness: Harness, artifact_id: str) -> None:
    await harness.registry.reject_artifact("ranker", artifact_id, operator="ada", reason="worse than thought")


class _RefusedSeals:
    """A registry that refuses a number of seals with one error."""

    def __init__(self, harness: Harness, error: WeightshiftError, refusals: int) -> None:
        self._publish = harness.registry.publish
        self._error = error
        self._refusals = refusals
        harness.registry.publish = self.publish  # type: ignore[method-assign]

    async def publish(self, publication: Publication) -> Target:
        """Publish, unless it is a seal that is to be refused."""
        if publication.reason == "rollback" and self._refusals:
            self._refusals -= 1
            raise self._error
        return await self._publish(publication)


async def jumped_to_a_whole_parachute(harness: Harness) -> None:
    """Traffic goes to the parachute, which was looked at, and then to stable, which was restored."""
    await _under_the_parachute(harness)
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def passed_by_a_parachute_that_is_not_whole(harness: Harness) -> None:
    """One instance of the parachute does not serve any more, so stable is restored under its traffic."""
    await _under_the_parachute(harness)
    harness.fleet.unfit.add("canary-0 v41")
    await harness.fleet.follow()
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def passed_by_a_parachute_that_no_route_leads_to(harness: Harness) -> None:
    """The mesh does not let traffic jump, so stable is restored."""
    await _under_the_parachute(harness)
    harness.mesh.failure = RouteInvalid("0 backends are canary, not one")
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.until(lambda: _tells(harness, "stable serves v41 again"))
    harness.mesh.failure = None
    await harness.result()


async def restored_stable_less_and_less_often(harness: Harness) -> None:
    """One instance of stable cannot take the healthy artifact either, for a while."""
    await _while_stable_swaps(harness)
    harness.fleet.unfit.add("stable-0 v41")
    await harness.client.signal_rollback(harness.service, _ASKED)

    async def failed_twice() -> bool:
        steps = (await harness.client.status(harness.service)).steps
        return sum("stable not restored yet" in step.text for step in steps) == 2

    await harness.until(failed_twice)
    harness.fleet.unfit.clear()
    await harness.result()


async def sealed_at_the_third_attempt(harness: Harness) -> None:
    """The registry refuses a seal twice."""
    await _while_stable_swaps(harness)
    _RefusedSeals(harness, OperationConflict(), refusals=2)
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def left_stable_to_a_newer_command(harness: Harness) -> None:
    """Neither cohort can be sealed, so traffic stays on the canary."""
    await _while_stable_swaps(harness)
    _RefusedSeals(harness, StaleFence(), refusals=2)
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def went_back_to_a_rejected_artifact(harness: Harness) -> None:
    """Stable serves v41 still, which is published no more: the canary is sealed with the candidate."""
    await _at_25_percent(harness)
    await _reject(harness, "v41")
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def brought_stable_to_the_only_artifact_left(harness: Harness) -> None:
    """Stable swaps when the way back is rejected, and is brought to the candidate."""
    await _while_stable_swaps(harness)
    await _reject(harness, "v41")
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.until_in_real_time(lambda: _tells(harness, "stable not sealed: Artifact"))
    harness.fleet.stuck.clear()
    await harness.result()


async def left_with_nothing_to_publish(harness: Harness) -> None:
    """Way back and candidate are both rejected while stable swaps."""
    await _while_stable_swaps(harness)
    for artifact_id in ("v41", "v42"):
        await _reject(harness, artifact_id)
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def rolled_back_below_a_newer_fence(harness: Harness) -> None:
    """Somebody broke the glass: the split is read back instead of written."""
    await _at_25_percent(harness)
    await harness.mesh.write(harness.service, TrafficSplit.with_canary(40), Fence.above_all(2))
    await harness.client.signal_rollback(harness.service, _ASKED)
    await harness.result()


async def rolled_back_as_inconclusive(harness: Harness) -> None:
    """The plan says to go back at a window's end without enough evidence."""
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE]
    changes = {"on_inconclusive": OnInconclusive.ROLLBACK}
    await harness.release("v42", FAST_PLAN.model_copy(update=changes))


async def took_over_from_a_terminated_release(harness: Harness) -> None:
    """The next release ends the split of one that was terminated at 25 % before anything else."""
    await _at_25_percent(harness)
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).terminate()
    harness.observations.blocked.clear()
    # The activity that was left behind stops the skipping of time, so nothing may take any.
    result = await harness.release("v43", UNJUDGED_PLAN.model_copy(update={"retain": timedelta()}))
    assert result.outcome is Outcome.PROMOTED


async def judged_without_a_window_until_approved(harness: Harness) -> None:
    """A stage that has no window is judged for as long as people take."""
    stages = (
        Stage(weight=25, window=timedelta(), max_window=timedelta()),
        Stage(weight=50, approvals=1),
        Stage(weight=100),
    )
    await harness.start("v42", FAST_PLAN.model_copy(update={"stages": stages}))
    await harness.until_in_real_time(harness.watches(25))
    await harness.approve("ada")
    await harness.result()


async def went_on_once_the_canary_was_ready_again(harness: Harness) -> None:
    """One canary instance is not ready when 50 % are due, and is a moment later."""
    await _at_25_percent(harness)
    harness.fleet.unready.add("canary-0")
    await harness.fleet.follow()
    await harness.client.promote(harness.service)
    await harness.until_in_real_time(lambda: _tells(harness, "looked at again"))
    harness.fleet.unready.clear()
    harness.observations.blocked.clear()
    await harness.result()


async def stayed_on_the_canary_while_going_back(harness: Harness) -> None:
    """Traffic was moved to the parachute, and stable cannot take back what it holds: it stays there."""
    await _under_the_parachute(harness)
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.CANARY), Fence.above_all(2))
    await harness.client.promote(harness.service)
    await harness.result()
    harness.fleet.unfit.add("stable-0 v41")
    changes = {"stages": (Stage(weight=33),), "promotion": Promotion.IN_PLACE}
    await harness.go_back("v41", EXPEDITED_PLAN.model_copy(update=changes))
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.DONE))


WAYS_BACK: dict[str, Callable[[Harness], Awaitable[None]]] = {
    path.__name__: path
    for path in (
        jumped_to_a_whole_parachute,
        passed_by_a_parachute_that_is_not_whole,
        passed_by_a_parachute_that_no_route_leads_to,
        restored_stable_less_and_less_often,
        sealed_at_the_third_attempt,
        left_stable_to_a_newer_command,
        went_back_to_a_rejected_artifact,
        brought_stable_to_the_only_artifact_left,
        left_with_nothing_to_publish,
        rolled_back_below_a_newer_fence,
        rolled_back_as_inconclusive,
        took_over_from_a_terminated_release,
        judged_without_a_window_until_approved,
        went_on_once_the_canary_was_ready_again,
        stayed_on_the_canary_while_going_back,
    )
}
