"""Who may release: locks, take-over, first releases."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from tests.workflow.harness import UNJUDGED_PLAN, Harness
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.release import Admission, Outcome, ReleasePhase, RollbackRequest
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import ArtifactNotReady, ReleaseActive, StaleFence, UnknownService


async def test_the_first_release_serves_and_has_no_way_back(harness: Harness) -> None:
    assert harness.splits() == ["100/0"]
    status = await harness.client.status(harness.service)
    assert (status.phase, status.outcome, status.way_back) == (ReleasePhase.DONE, Outcome.PROMOTED, "none")


async def test_only_one_release_of_a_service_runs(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    with pytest.raises(ReleaseActive, match="already running"):
        await harness.start("v43")
    await harness.until_judging(5)
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()


async def test_a_terminated_release_is_taken_over(harness: Harness) -> None:
    harness.observations.blocked.add(50)
    await harness.start("v42")
    await harness.until_judging(50)
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    await handle.terminate("against all advice")
    assert harness.splits()[-1] == "50/50"
    harness.observations.blocked.clear()
    before = len(harness.splits())
    # The activity that was left behind stops the skipping of time, so nothing may take any.
    without_timers = UNJUDGED_PLAN.model_copy(update={"retain": timedelta()})
    assert (await harness.release("v43", without_timers)).outcome is Outcome.PROMOTED
    assert harness.splits()[before:][0] == "100/0", "its split is ended before anything else"
    outcomes = [record.outcome for record in await harness.registry.releases(harness.service)]
    assert outcomes[0] is Outcome.PROMOTED
    assert None not in outcomes


async def test_a_lock_is_never_taken_from_a_release_that_runs(harness: Harness) -> None:
    harness.observations.blocked.add(5)
    await harness.start("v42")
    await harness.until_judging(5)
    late = Admission(request=harness.request("v43"), run_id="a run that was closed long ago")
    admission = harness.admission()
    environment = ActivityEnvironment(client=harness.environment.client)
    with pytest.raises(ApplicationError) as refused:
        await environment.run(admission.admit, late)
    assert refused.value.type == "ReleaseActive"
    await harness.client.rollback(harness.service, RollbackRequest())
    await harness.result()


async def test_a_registry_behind_the_mesh_is_refused_before_anything_is_published(harness: Harness) -> None:
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.STABLE), Fence(epoch=99, sequence=1))
    await harness.start("v42")
    with pytest.raises(StaleFence, match="recover"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    assert await harness.serves(Cohort.CANARY, "v41")
    newest = (await harness.registry.releases(harness.service))[0]
    assert newest.outcome is Outcome.REFUSED, "the lock is free"


async def test_an_artifact_that_is_not_ready_is_not_admitted(harness: Harness) -> None:
    await harness.registry.reject_artifact("ranker", "v43", operator="ci", reason="bad")
    await harness.start("v43")
    with pytest.raises(ArtifactNotReady):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    assert (await harness.release("v42")).outcome is Outcome.PROMOTED, "no lock was left behind"


async def test_asking_about_an_unknown_service_is_a_typed_error(harness: Harness) -> None:
    unknown = harness.service.model_copy(update={"model": "nobody"})
    with pytest.raises(UnknownService):
        await harness.client.status(unknown)
