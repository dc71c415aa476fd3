import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.records import SERVICE, record
from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, ReleasePhase, ReleaseRecord
from weightshift.contracts.target import Target, Targets
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import NoCanaryCapacity, UnknownArtifact
from weightshift.way_back import EXPEDITED_PLAN, expedited_plan, going_back_key, previous_artifact

Run = Callable[..., Any]
ROLLBACK = ("release", "rollback", "ranker", "-e", "test", "--operator", "ada")


def gone_back(artifact_id: str, outcome: Outcome = Outcome.PROMOTED) -> ReleaseRecord:
    return record(artifact_id, outcome).model_copy(update={"request_key": going_back_key("R")})


HISTORY = (
    record("v4", Outcome.ROLLED_BACK),
    record("v3", Outcome.PROMOTED),
    record("v2", Outcome.REFUSED),
    record("v1", Outcome.PROMOTED),
)


def serving(artifact_id: str) -> Targets:
    stable = Target(
        service=SERVICE,
        cohort=Cohort.STABLE,
        revision=5,
        artifact_id=artifact_id,
        manifest_sha256="0" * 64,
        feature_schema="s",
    )
    return Targets(stable=stable)


def pools(*, stable: int, canary: int, lost: int = 0) -> tuple[InstanceState, ...]:
    """So many instances of each cohort, and so many more of the canary that are lost."""
    cohorts = [*[Cohort.STABLE] * stable, *[Cohort.CANARY] * (canary + lost)]
    return tuple(
        InstanceState(
            report=InstanceReport(instance_id=f"i-{number}", boot_id="1", service=SERVICE, cohort=cohort),
            age_seconds=0.0,
            lost=number >= stable + canary,
        )
        for number, cohort in enumerate(cohorts)
    )


def finished(releases: Any, registry: Any, make_status: Any) -> None:
    """No release is active; v3 serves."""
    releases.active = None
    releases.statuses = [make_status(outcome=Outcome.PROMOTED, split=TrafficSplit.with_canary(0))]
    registry.answers.update(targets=serving("v3"), releases=HISTORY[1:], instances=pools(stable=2, canary=2))


def test_the_artifact_before_is_the_one_promoted_before() -> None:
    assert previous_artifact(HISTORY, "v3") == "v1"
    with pytest.raises(UnknownArtifact, match="--to"):
        previous_artifact(HISTORY, "v1")


def test_promoting_the_same_artifact_again_changes_nothing_about_the_one_before() -> None:
    assert previous_artifact((record("v3", Outcome.PROMOTED), *HISTORY), "v3") == "v1"


def test_going_back_again_does_not_return_to_what_was_left(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    history = (gone_back("v2"), record("v3", Outcome.PROMOTED), record("v2", Outcome.PROMOTED), *HISTORY[-1:])
    registry.answers.update(targets=serving("v2"), releases=history)
    result = run(*ROLLBACK)
    assert (result.code, "v2 serves" in result.out) == (0, True)
    assert [name for name, *_ in releases.calls] == ["status"]
    assert run(*ROLLBACK, "--from", "v2").code == 0
    assert releases.calls[1][1].artifact_id == "v1", "further back, not to v3"


def test_going_back_that_did_not_get_through_is_tried_again(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    registry.answers["releases"] = (gone_back("v1", Outcome.REFUSED), *HISTORY[1:])
    assert run(*ROLLBACK).code == 0
    (_, request), _ = releases.calls
    assert request.artifact_id == "v1"
    assert request.request_key == going_back_key(request.release_id)


@pytest.mark.parametrize("before", [(), (gone_back("v1"),)], ids=["once", "after one that got through"])
def test_going_back_that_reached_stable_and_did_not_get_through_is_finished(
    run: Run, releases: Any, registry: Any, make_status: Any, before: tuple[ReleaseRecord, ...]
) -> None:
    finished(releases, registry, make_status)
    history = (*before, record("v3", Outcome.PROMOTED), record("v2", Outcome.PROMOTED), *HISTORY[-1:])
    tried = gone_back("v2", Outcome.ROLLED_BACK)
    registry.answers.update(targets=serving("v2"), releases=(tried, *history))
    assert run(*ROLLBACK).code == 0
    assert releases.calls[0][1].artifact_id == "v2", "not v1, which was promoted before it"


def test_going_back_to_what_is_stables_target_already_may_be_tried_again(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    """As after a terminated release that had published to stable: v2 was promoted last."""
    finished(releases, registry, make_status)
    history = (record("v3", Outcome.ROLLED_BACK), record("v2", Outcome.PROMOTED))
    registry.answers.update(targets=serving("v2"), releases=(gone_back("v2", Outcome.ROLLED_BACK), *history))
    assert run(*ROLLBACK, "--to", "v2").code == 0
    assert releases.calls[0][1].artifact_id == "v2"
    registry.answers["releases"] = history
    result = run(*ROLLBACK, "--to", "v2")
    assert (result.code, "v2 serves already" in result.err) == (4, True)


def test_an_active_release_is_rolled_back(run: Run, releases: Any, make_status: Any) -> None:
    releases.statuses = [make_status(split=TrafficSplit.with_canary(0), outcome=Outcome.ROLLED_BACK)]
    result = run(*ROLLBACK, "--reason", "wrong scores")
    assert (result.code, "traffic stable/canary 100/0" in result.out) == (0, True)
    ((_, _, request),) = releases.calls
    assert (request.operator, request.reason) == ("ada", "wrong scores")


def test_after_its_end_the_artifact_before_is_released_at_once(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    assert run(*ROLLBACK).code == 0
    (started, request), (waited, _) = releases.calls
    assert (started, waited, request.artifact_id) == ("start", "wait", "v1")
    assert [stage.weight for stage in request.plan.stages] == [100]
    assert not request.plan.max_window


def test_a_canary_too_small_for_everything_takes_its_share_and_stable_swaps_at_once(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    registry.answers["instances"] = pools(stable=8, canary=2, lost=6)
    assert run(*ROLLBACK).code == 0
    plan = releases.calls[0][1].plan
    assert ([stage.weight for stage in plan.stages], plan.promotion, plan.wave) == ([20], "in-place", 8)
    assert plan.canary_replicas is None
    assert Plan.model_validate(plan.model_dump()) == plan
    assert expedited_plan(pools(stable=0, canary=0)) == EXPEDITED_PLAN


@pytest.mark.parametrize(("stable", "weight", "promotion"), [(1, 100, "idle-swap"), (3, 25, "in-place")])
def test_a_canary_whose_pods_were_all_let_go_gets_one(stable: int, weight: int, promotion: str) -> None:
    plan = expedited_plan(pools(stable=stable, canary=0, lost=2))
    assert (plan.canary_replicas, plan.promotion) == (1, promotion)
    assert [stage.weight for stage in plan.stages] == [weight]
    assert Plan.model_validate(plan.model_dump()) == plan


def test_a_release_that_goes_through_at_that_moment_is_followed_by_the_one_before(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    releases.active = "v3"
    assert run(*ROLLBACK).code == 0
    assert [name for name, *_ in releases.calls] == ["rollback", "result", "start", "wait"]


def test_a_second_rollback_does_not_leave_the_healthy_artifact(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    registry.answers["releases"] = HISTORY
    releases.statuses = [make_status(outcome=Outcome.ROLLED_BACK, artifact_id="v4")]
    result = run(*ROLLBACK)
    assert (result.code, "v3 serves" in result.out) == (0, True)
    assert [name for name, *_ in releases.calls] == ["status"]
    releases.statuses = [make_status(outcome=Outcome.PROMOTED)]
    assert run(*ROLLBACK, "--from", "v3").code == 0, "said by name, it goes back further"
    assert releases.calls[1][1].artifact_id == "v1"


def test_after_a_refusal_there_is_nothing_to_do_and_it_is_told(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    registry.answers["releases"] = HISTORY
    releases.statuses = [make_status(phase=ReleasePhase.ADMITTING, artifact_id="v4")]
    releases.refusal_of = NoCanaryCapacity("no canary instance reports")
    result = run(*ROLLBACK)
    assert result.code == 0
    told = "nothing to do, v3 serves; newest release: test/ranker v4 refused: no canary instance reports"
    assert told in result.out


@pytest.mark.parametrize("target", ["v3", "v4"])
def test_after_a_terminated_release_what_was_promoted_last_is_released(
    run: Run, releases: Any, registry: Any, make_status: Any, target: str
) -> None:
    finished(releases, registry, make_status)
    registry.answers.update(releases=(record("v4", None), *HISTORY[1:]), targets=serving(target))
    assert run(*ROLLBACK).code == 0
    (started, request), (waited, _) = releases.calls
    assert (started, waited, request.artifact_id) == ("start", "wait", "v3")
    assert run(*ROLLBACK, "--from", "v9").code == 4
    assert run(*ROLLBACK, "--from", "v4").code == 0, "it is what was being released"


def test_after_a_take_over_that_failed_the_unfinished_artifact_is_left(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    history = (gone_back("v3", Outcome.REFUSED), record("v4", Outcome.ABANDONED), *HISTORY[1:])
    registry.answers.update(releases=history, targets=serving("v4"))
    assert run(*ROLLBACK).code == 0
    assert releases.calls[0][1].artifact_id == "v3"
    assert run(*ROLLBACK, "--to", "v4").code == 0, "where v3 cannot serve, what was begun can be finished"


def test_a_terminated_first_release_has_nothing_to_go_back_to(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    registry.answers.update(releases=(record("v1", None),), targets=serving("v1"))
    assert (run(*ROLLBACK).code, releases.calls) == (2, [])


def test_the_artifact_to_go_back_to_can_be_named(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    assert run(*ROLLBACK, "--to", "v0", "--json").code == 0
    assert releases.calls[0][1].artifact_id == "v0"


@pytest.mark.parametrize(
    ("named", "calls"), [("v0", ["rollback", "result", "start", "wait"]), ("v3", ["rollback"])]
)
def test_named_while_a_release_is_active_the_artifact_follows_its_rollback(
    run: Run, releases: Any, registry: Any, make_status: Any, named: str, calls: list[str]
) -> None:
    finished(releases, registry, make_status)
    releases.active = "v4"
    releases.statuses = [make_status(outcome=Outcome.ROLLED_BACK, split=TrafficSplit.with_canary(0))]
    run(*ROLLBACK, "--from", "v4", "--to", named)
    assert [name for name, *_ in releases.calls] == calls
    if "start" in calls:
        assert releases.calls[2][1].artifact_id == named


@pytest.mark.parametrize("active", ["v4", None])
def test_from_acts_only_on_what_serves(
    run: Run, releases: Any, registry: Any, make_status: Any, active: str | None
) -> None:
    finished(releases, registry, make_status)
    releases.active = active
    if active:
        releases.statuses = [make_status(outcome=Outcome.ROLLED_BACK)]
    result = run(*ROLLBACK, "--from", "v9", "--json")
    assert (result.code, releases.calls) == (4, [])
    assert json.loads(result.out)["error"]["type"] == "Conflict" if result.out else "v9" in result.err
    assert run(*ROLLBACK, "--from", active or "v3").code == 0


def test_going_back_to_what_serves_already_changes_nothing(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    finished(releases, registry, make_status)
    result = run(*ROLLBACK, "--to", "v3")
    assert (result.code, releases.calls) == (4, [])
