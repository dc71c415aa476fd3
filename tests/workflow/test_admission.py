"""Who may release: locks, take-over, first releases."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from tests.workflow.harness import FAST_PLAN, UNJUDGED_PLAN, Harness
from tests.workflow.twins import approved_artifact
from weightshift.analysis.sizing import ObservedTraffic
from weightshift.contracts.approval import ApprovalRequest
from weightshift.contracts.identity import Cohort, Fence
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import (
    Admission,
    Outcome,
    ReleasePhase,
    ReleaseRequest,
    ReleaseStatus,
    RollbackRequest,
)
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import (
    ArtifactNotReady,
    CanaryDiffers,
    Conflict,
    FeatureSchemaChanged,
    InvalidPlan,
    ReleaseActive,
    StaleFence,
    UnknownService,
)
from weightshift.way_back import going_back_key

WITHOUT_TIMERS = UNJUDGED_PLAN.model_copy(update={"retain": timedelta()})
"""An activity that a terminated release left behind stops the skipping of time, so nothing may take any."""


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
    assert (await harness.release("v43", WITHOUT_TIMERS)).outcome is Outcome.PROMOTED
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


async def test_another_feature_schema_needs_callers_that_are_ready(harness: Harness) -> None:
    await approved_artifact(harness.registry, "ranker", "v50", feature_schema="ranker-v2")
    await harness.start("v50")
    with pytest.raises(FeatureSchemaChanged, match="ranker-v2; add --allow-schema-change"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    ready = harness.request("v50").model_copy(update={"allow_schema_change": True})
    await harness.client.start(ready)
    assert (await harness.result()).outcome is Outcome.PROMOTED
    told = [step.text for step in (await harness.client.status(harness.service)).steps]
    assert any("v50 takes ranker-v2: callers have to be ready" in text for text in told)


async def test_a_gpu_of_stable_that_no_canary_instance_has_takes_no_release(harness: Harness) -> None:
    harness.fleet.devices = {"stable-0": "NVIDIA H200", "stable-1": "NVIDIA L4", "canary-0": "NVIDIA H200"}
    await harness.until_in_real_time(harness.fleet.has_reported)
    await harness.start("v42")
    with pytest.raises(CanaryDiffers, match=r"stable's stable-1 .*NVIDIA L4\); start a canary instance like"):
        await harness.client.wait(harness.service, on_status=lambda status: None)
    harness.fleet.devices["canary-1"] = "NVIDIA L4"
    await harness.until_in_real_time(harness.fleet.has_reported)
    assert (await harness.release("v42")).outcome is Outcome.PROMOTED, "no lock was left behind"


async def refused_plan(harness: Harness, plan: Plan) -> str:
    await harness.start("v42", plan)
    with pytest.raises(InvalidPlan) as refused:
        await harness.client.wait(harness.service, on_status=lambda status: None)
    return str(refused.value)


async def test_a_plan_that_the_traffic_cannot_reach_is_refused_with_every_problem(harness: Harness) -> None:
    harness.traffic.told = ObservedTraffic(requests_per_second=0.5, error_fraction=0.0)
    problems = await refused_plan(harness, FAST_PLAN)
    assert "stage 1: about 90 canary requests arrive within max_window" in problems
    assert "fewer than min_samples 200" in problems
    assert "stage 2" not in problems, "at 25 % there are enough"
    harness.traffic.told = None
    assert (await harness.release("v42")).outcome is Outcome.PROMOTED, "no lock was left behind"


async def test_a_weight_beyond_the_canarys_capacity_is_refused(harness: Harness) -> None:
    harness.fleet.capacities = {"canary-0": 0.2, "canary-1": 0.2}
    await harness.until_in_real_time(harness.fleet.has_reported)
    harness.traffic.told = ObservedTraffic(requests_per_second=500, error_fraction=0.0, in_flight=8)
    problems = await refused_plan(harness, FAST_PLAN)
    assert "stage 4: at 100 % a canary instance carries 5.0 times" in problems
    assert "at most 40 %" in problems
    assert "stage 2" not in problems
    way_back = await harness.release("v42", UNJUDGED_PLAN)
    assert way_back.outcome is Outcome.PROMOTED, "what is not judged, as the way back, is never refused"
    assert harness.traffic.asked == 1, "nor does it wait for Prometheus"


async def test_what_is_known_of_plan_and_traffic_is_evidence(harness: Harness) -> None:
    result = await harness.release("v42")
    rows = await harness.registry.audit(harness.service, release_id=result.release_id)
    (plan,) = [row for row in rows if "plan" in row.data]
    assert plan.summary == "admitted with epoch 2, stages 5 %, 25 %, 50 %, 100 %"
    assert plan.data["plan"]["retain"] == "PT30M"
    assert [stage["min_samples"] for stage in plan.data["stages"]] == [200] * 4
    assert any("traffic: none was measured lately" in row.summary for row in rows)
    harness.traffic.told = ObservedTraffic(requests_per_second=120, error_fraction=0.001)
    result = await harness.release("v43")
    rows = await harness.registry.audit(harness.service, release_id=result.release_id)
    assert any("about 120 requests/s on stable, 0.10% of them failed" in row.summary for row in rows)


async def left_in_mid_promotion(harness: Harness) -> None:
    """Terminate a release of v42 once stable was published it."""
    harness.fleet.stuck.add("stable-0 v42")
    await harness.start("v42", WITHOUT_TIMERS)
    await harness.until_in_real_time(lambda: harness.serves(Cohort.STABLE, "v42"))
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).terminate("bad advice")
    harness.fleet.stuck.clear()


async def admitted(harness: Harness, request: ReleaseRequest) -> ReleaseStatus:
    """Start a release and follow it to its outcome; raises what it was refused with."""
    await harness.client.start(request)
    async with asyncio.timeout(20):
        return await harness.client.wait(harness.service, on_status=lambda status: None)


async def test_what_a_terminated_release_left_on_stable_is_no_way_back(harness: Harness) -> None:
    await left_in_mid_promotion(harness)
    with pytest.raises(Conflict, match=r"stable was left with v42, which was never promoted; .* rollback"):
        await admitted(harness, harness.request("v43", WITHOUT_TIMERS))
    assert not await harness.serves(Cohort.CANARY, "v43")
    back = harness.request("v41", WITHOUT_TIMERS)
    back = back.model_copy(update={"request_key": going_back_key(back.release_id)})
    assert (await admitted(harness, back)).outcome is Outcome.PROMOTED
    await harness.environment.client.get_workflow_handle(harness.service.workflow_id).result()
    assert (await admitted(harness, harness.request("v43", WITHOUT_TIMERS))).outcome is Outcome.PROMOTED


async def test_where_what_was_promoted_is_rejected_the_rest_is_the_way_back(harness: Harness) -> None:
    await left_in_mid_promotion(harness)
    await harness.registry.reject_artifact("ranker", "v41", operator="ci", reason="worse than thought")
    status = await admitted(harness, harness.request("v43", WITHOUT_TIMERS))
    assert status.outcome is Outcome.PROMOTED
    assert any("the way back is v42, which was never promoted" in step.text for step in status.steps)


async def test_a_repeat_of_an_admission_holds_on_to_what_it_has(harness: Harness) -> None:
    request = harness.request("v42")
    approval = await harness.registry.approve_release(
        ApprovalRequest(
            service=harness.service,
            release_id=request.release_id,
            artifact_id="v42",
            operation_id="one",
            lifetime=timedelta(seconds=1),
        ),
        operator="ada",
    )
    admission = Admission(
        request=request.model_copy(update={"approvals": (approval.approval_id,)}), run_id="run"
    )
    environment = ActivityEnvironment(client=harness.environment.client)
    first = await environment.run(harness.admission().admit, admission)
    clock = datetime.now(UTC) + timedelta(hours=1)
    harness.traffic.told = ObservedTraffic(requests_per_second=0.5, error_fraction=0.0)
    later = harness.admission(clock=lambda: clock)
    again = await environment.run(later.admit, admission)
    assert (again.epoch, again.approvals) == (first.epoch, first.approvals)


async def test_a_repeat_of_a_refused_admission_is_refused(harness: Harness) -> None:
    await harness.mesh.write(harness.service, TrafficSplit.all_to(Cohort.STABLE), Fence(epoch=99, sequence=1))
    admission = Admission(request=harness.request("v42"), run_id="run")
    environment = ActivityEnvironment(client=harness.environment.client)
    for refusal in ("StaleFence", "Conflict"):
        with pytest.raises(ApplicationError, match="recover") as refused:
            await environment.run(harness.admission().admit, admission)
        assert refused.value.type == refusal
