"""What a rollback does when the artifact to go back to was rejected meanwhile."""

from tests.workflow.harness import UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.way_back import EXPEDITED_PLAN, going_back_key


async def reject(harness: Harness, artifact_id: str) -> None:
    await harness.registry.reject_artifact("ranker", artifact_id, operator="ada", reason="worse than thought")


async def in_mid_promotion(harness: Harness) -> None:
    """The canary carries everything, and one instance of stable does not come up with v42."""
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", UNJUDGED_PLAN)

    async def stable_is_swapping() -> bool:
        return (await harness.client.status(harness.service)).way_back.startswith("reload")

    await harness.until_in_real_time(stable_is_swapping)


async def releases_another(harness: Harness) -> None:
    """See that v43 goes through, without a timer: a wait left behind may keep time from being skipped."""
    await harness.start("v43", EXPEDITED_PLAN)
    await harness.until_in_real_time(lambda: harness.is_in(ReleasePhase.DONE))
    assert (await harness.client.status(harness.service)).outcome is Outcome.PROMOTED


async def test_traffic_goes_back_and_the_rejected_artifact_is_not_published_again(harness: Harness) -> None:
    before = (await harness.registry.targets(harness.service)).stable
    harness.observations.blocked.add(25)
    await harness.start("v42")
    await harness.until_judging(25)
    await reject(harness, "v41")
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="smells"))
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "100/0")
    assert (
        "v41 may not be published any more, so stable serves v41 and traffic is 100/0; release another"
        in result.reason
    )
    assert f"rollback ranker -e {harness.service.environment} --to" in result.reason
    targets = await harness.registry.targets(harness.service)
    assert targets.stable == before
    assert targets.canary is not None
    assert targets.canary.artifact_id == "v42"
    assert targets.canary.serve_floor == targets.canary.revision, "no late command can win"
    harness.observations.blocked.clear()
    await releases_another(harness)


async def test_in_mid_promotion_stable_is_brought_to_the_only_artifact_there_is(harness: Harness) -> None:
    await in_mid_promotion(harness)
    await reject(harness, "v41")
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="smells"))

    async def seals_with_the_candidate() -> bool:
        status = await harness.client.status(harness.service)
        return any("stable not sealed: Artifact" in step.text for step in status.steps)

    await harness.until_in_real_time(seals_with_the_candidate)
    assert harness.splits()[-1] == "0/100", "traffic stays where something serves"
    harness.fleet.stuck.clear()
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "100/0")
    assert "stable serves v42 and traffic is 100/0" in result.reason
    for cohort in Cohort:
        assert await harness.serves(cohort, "v42")
    await releases_another(harness)


async def test_with_nothing_left_to_publish_traffic_stays_and_another_artifact_takes_it(
    harness: Harness,
) -> None:
    await in_mid_promotion(harness)
    await reject(harness, "v41")
    await reject(harness, "v42")
    await harness.client.signal_rollback(harness.service, RollbackRequest(reason="smells"))
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "0/100")
    assert "stable is left as it was and traffic is 0/100; release another artifact" in result.reason
    back = harness.request("v43", EXPEDITED_PLAN)
    back = back.model_copy(update={"request_key": going_back_key(back.release_id)})
    await harness.client.start(back)
    assert (await harness.result()).outcome is Outcome.PROMOTED
    assert set(harness.splits()[-2:]) == {"0/100", "100/0"}, "never a share for a stable that serves nothing"
    assert await harness.is_in(ReleasePhase.DONE)


async def test_under_the_parachute_stable_keeps_what_was_promoted(harness: Harness) -> None:
    await harness.start("v42", UNJUDGED_PLAN)
    await harness.until_the_parachute_is_up()
    await reject(harness, "v41")
    await harness.client.signal_rollback(harness.service, RollbackRequest())
    result = await harness.result()
    assert (result.outcome, harness.splits()[-1]) == (Outcome.ROLLED_BACK, "100/0")
    assert "stable serves v42 and traffic is 100/0" in result.reason
    assert await harness.serves(Cohort.CANARY, "v42")
