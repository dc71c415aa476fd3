from typing import Any

import pytest

from activities.fleet import assess, check_readiness, live_instances
from activities.metrics import lost_instance
from weightshift.contracts.commands import CapacityCheck, FleetWait, InstanceRef, LostInstances
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import (
    CandidatePhase,
    CandidateProgress,
    InstanceError,
    InstanceReport,
    InstanceState,
    LoadedGeneration,
)

SERVICE = Service(model="ranker", environment="prod")
REFERENCES = (
    InstanceRef(instance_id="canary-0", boot_id="1"),
    InstanceRef(instance_id="canary-1", boot_id="1"),
)
NO_ROOM = InstanceError(type="OutOfMemory", message="no room", phase=CandidatePhase.LOADING, permanent=True)


def candidate(phase: CandidatePhase, revision: int = 7, **changes: Any) -> CandidateProgress:
    return CandidateProgress(revision=revision, artifact_id="v2", phase=phase, bytes_done=10, **changes)


def state(instance_id: str, *, lost: bool = False, **changes: Any) -> InstanceState:
    report = InstanceReport(
        instance_id=instance_id, boot_id="1", service=SERVICE, cohort=Cohort.CANARY, ready=True
    ).model_copy(update=changes)
    return InstanceState(report=report, age_seconds=0, lost=lost)


def loaded(revision: int = 7) -> LoadedGeneration:
    return LoadedGeneration(
        revision=revision, artifact_id="v2", manifest_sha256="0" * 64, feature_schema="s", generation=1
    )


def wait(phase: CandidatePhase, *, tolerate_lost: bool = False) -> FleetWait:
    return FleetWait(
        service=SERVICE,
        cohort=Cohort.CANARY,
        revision=7,
        phase=phase,
        instances=REFERENCES,
        tolerate_lost=tolerate_lost,
    )


def test_a_phase_is_done_when_every_instance_has_passed_it() -> None:
    states = (
        state("canary-0", candidate=candidate(CandidatePhase.VERIFYING)),
        state("canary-1", candidate=candidate(CandidatePhase.DOWNLOADING)),
    )
    assessment = assess(wait(CandidatePhase.DOWNLOADING), states)
    assert [one.instance.instance_id for one in assessment.done] == ["canary-0"]
    assert assessment.awaited == ("canary-1",)


def test_progress_with_another_revision_does_not_count() -> None:
    states = (state("canary-0", candidate=candidate(CandidatePhase.INSTALLED, revision=6)),)
    assert assess(wait(CandidatePhase.DOWNLOADING), states).awaited == ("canary-0", "canary-1")


def test_warm_means_serving_exactly_the_revision_and_ready() -> None:
    warm = wait(CandidatePhase.DRY_RUNNING)
    states = (
        state("canary-0", actual=loaded(), candidate=candidate(CandidatePhase.INSTALLED)),
        state("canary-1", actual=loaded(6), candidate=candidate(CandidatePhase.DRY_RUNNING)),
    )
    assert assess(warm, states).awaited == ("canary-1",)
    unready = (states[0], state("canary-1", actual=loaded(), ready=False))
    assert assess(warm, unready).awaited == ("canary-1",)


def test_an_adopted_artifact_has_passed_every_phase() -> None:
    states = tuple(state(one.instance_id, actual=loaded()) for one in REFERENCES)
    for phase in (CandidatePhase.DOWNLOADING, CandidatePhase.VERIFYING, CandidatePhase.DRY_RUNNING):
        assert not assess(wait(phase), states).awaited


@pytest.mark.parametrize(("permanent", "failures"), [(True, ["canary-0"]), (False, [])])
def test_only_a_permanent_error_of_this_revision_is_final(permanent: bool, failures: list[str]) -> None:
    error = InstanceError(
        type="DigestMismatch", message="wrong bytes", phase=CandidatePhase.DOWNLOADING, permanent=permanent
    )
    states = (state("canary-0", candidate=candidate(CandidatePhase.FAILED, error=error)),)
    assessment = assess(wait(CandidatePhase.VERIFYING), states)
    assert [instance_id for instance_id, _ in assessment.failed] == failures


def test_who_is_awaited_is_named_with_what_went_wrong_last() -> None:
    error = InstanceError(
        type="WeightshiftError", message="disk full", phase=CandidatePhase.DOWNLOADING, permanent=False
    )
    again = candidate(CandidatePhase.DOWNLOADING, attempt=7, last_error=error)
    states = (state("canary-0", candidate=again), state("canary-1", candidate=again, lost=True))
    awaited = assess(wait(CandidatePhase.VERIFYING), states).awaited
    assert awaited == ("canary-0 (disk full)", "canary-1 (disk full)")


def test_what_fails_at_verification_has_been_downloaded() -> None:
    error = InstanceError(
        type="IncompatibleModel", message="no", phase=CandidatePhase.VERIFYING, permanent=True
    )
    states = tuple(
        state(one.instance_id, candidate=candidate(CandidatePhase.FAILED, error=error)) for one in REFERENCES
    )
    assert not assess(wait(CandidatePhase.DOWNLOADING), states).failed
    assert len(assess(wait(CandidatePhase.VERIFYING), states).failed) == 2


def test_a_lost_instance_is_awaited_unless_it_is_tolerated() -> None:
    states = (state("canary-0", actual=loaded()), state("canary-1", lost=True, actual=loaded()))
    assert assess(wait(CandidatePhase.DRY_RUNNING), states).awaited == ("canary-1",)
    assert not assess(wait(CandidatePhase.DRY_RUNNING, tolerate_lost=True), states).awaited


def test_one_that_leaves_keeps_no_way_back_waiting() -> None:
    leaving = state("canary-1", actual=loaded(6), ready=False, draining=True)
    states = (state("canary-0", actual=loaded()), leaving)
    assert not assess(wait(CandidatePhase.DRY_RUNNING, tolerate_lost=True), states).awaited


def test_where_every_instance_is_lost_those_that_took_their_place_are_awaited() -> None:
    gone = tuple(state(one.instance_id, lost=True, actual=loaded()) for one in REFERENCES)
    patient = wait(CandidatePhase.DRY_RUNNING, tolerate_lost=True)
    assert assess(patient, (*gone, state("canary-9", actual=loaded(6)))).awaited == ("canary-9",)
    (only,) = assess(patient, (*gone, state("canary-9", actual=loaded()))).done
    assert only.instance.instance_id == "canary-9"
    nobody = assess(patient, (*gone, state("stable-9", cohort=Cohort.STABLE, actual=loaded())))
    assert not nobody.done, "another cohort does not count"
    beside = assess(patient, (state("canary-0", actual=loaded()), state("canary-9", actual=loaded(6))))
    assert not beside.awaited, "one of those that were asked for is enough"


STABLE = tuple(InstanceRef(instance_id=f"stable-{number}", boot_id="1", capacity=0.1) for number in range(3))
REPLACEABLE = FleetWait(
    service=SERVICE,
    cohort=Cohort.STABLE,
    revision=7,
    phase=CandidatePhase.DRY_RUNNING,
    instances=STABLE,
    lost=LostInstances.REPLACED,
)


def stable(name: str, revision: int = 7, **changes: Any) -> InstanceState:
    return state(name, cohort=Cohort.STABLE, actual=loaded(revision), **changes)


@pytest.mark.parametrize(
    "gone",
    [(), (stable("stable-0", lost=True),), (stable("stable-0", draining=True, ready=False),)],
    ids=["forgotten", "lost", "leaving"],
)
def test_a_newcomer_takes_the_place_of_one_that_is_gone(gone: tuple[InstanceState, ...]) -> None:
    rest = (*gone, stable("stable-1"), stable("stable-2"))
    assert assess(REPLACEABLE, rest).awaited == ("what takes the place of stable-0, which is lost",)
    assessment = assess(REPLACEABLE, (*rest, stable("stable-9", servable_capacity=0.1)))
    assert not assessment.awaited
    assert {one.instance.instance_id for one in assessment.done} == {"stable-1", "stable-2", "stable-9"}


def test_what_newcomers_carry_counts_and_not_how_many_there_are() -> None:
    small = (stable("stable-2"), stable("stable-8", servable_capacity=0.1))
    assert len(assess(REPLACEABLE, small).awaited) == 2, "two are gone, and one came"
    assert not assess(REPLACEABLE, (*small, stable("stable-9", servable_capacity=0.1))).awaited
    assert not assess(REPLACEABLE, (stable("stable-2"), stable("stable-9", servable_capacity=0.2))).awaited


@pytest.mark.parametrize(
    ("newcomer", "named"),
    [
        (stable("stable-9", 6), "stable-9"),
        (stable("stable-9", ready=False), "stable-9"),
        (
            stable("stable-9", 6, candidate=candidate(CandidatePhase.FAILED, error=NO_ROOM)),
            "stable-9 (no room)",
        ),
    ],
    ids=["behind", "not ready", "unfit"],
)
def test_a_newcomer_that_does_not_serve_yet_is_awaited(newcomer: InstanceState, named: str) -> None:
    assessment = assess(REPLACEABLE, (stable("stable-1"), stable("stable-2"), newcomer))
    assert assessment.awaited == ("what takes the place of stable-0, which is lost", named)
    assert not assessment.failed, "it may be replaced itself"


def test_a_newcomer_takes_the_place_of_none_that_reports() -> None:
    lagging = (stable("stable-0", 6), stable("stable-1"), stable("stable-2"), stable("stable-9"))
    assert assess(REPLACEABLE, lagging).awaited == ("stable-0",)
    other = (stable("stable-1"), stable("stable-2"), state("canary-9", actual=loaded()))
    assert assess(REPLACEABLE, other).awaited, "of another cohort"


def test_a_wave_that_lost_one_goes_on_once_the_cohort_is_whole_again() -> None:
    wave = REPLACEABLE.model_copy(
        update={"instances": STABLE[:1], "lost": LostInstances.COVERED, "capacity": 0.3}
    )
    rest = (stable("stable-1", 6, servable_capacity=0.1), stable("stable-2", 6, servable_capacity=0.1))
    lost = stable("stable-0", lost=True)
    newcomer = stable("stable-9", 6, servable_capacity=0.1)
    for short in ((), (newcomer.model_copy(update={"lost": True}),), (state("canary-9", actual=loaded()),)):
        awaited = assess(wave, (lost, *rest, *short)).awaited
        assert awaited == ("what takes the place of stable-0, which is lost",)
    assert not assess(wave, (lost, *rest, newcomer)).awaited, "it gets no grant before the last wave"
    restarted = state("stable-0", cohort=Cohort.STABLE, ready=False)
    assert assess(wave, (restarted, *rest, newcomer)).awaited == ("stable-0",)


def test_by_name_no_newcomer_counts() -> None:
    by_name = REPLACEABLE.model_copy(update={"lost": LostInstances.AWAITED})
    newcomer = stable("stable-9", servable_capacity=1.0)
    states = (stable("stable-0", lost=True), stable("stable-1"), stable("stable-2"), newcomer)
    assert assess(by_name, states).awaited == ("stable-0",)


def test_capacity_names_what_is_missing_and_why() -> None:
    check = CapacityCheck(service=SERVICE, cohort=Cohort.CANARY, revision=7, instances=REFERENCES)
    assert check_readiness(check, (state("canary-0", actual=loaded()),)).missing == ("canary-1 is lost",)
    stale = check_readiness(check, (state("canary-0", actual=loaded(6)), state("canary-1", actual=loaded())))
    assert stale.missing == ("canary-0 serves revision 6",)
    assert [one.instance_id for one in stale.ready] == ["canary-1"]
    unready = check_readiness(check, (state("canary-0", actual=loaded(), ready=False),))
    assert "canary-0 is not ready" in unready.missing


@pytest.mark.parametrize(
    ("second", "all_serve"),
    [
        (state("canary-1", actual=loaded(), ready=False), True),
        (state("canary-1", actual=loaded(), ready=False, draining=True), False),
        (state("canary-1", actual=loaded(), lost=True), False),
        (state("canary-1", actual=loaded(6)), False),
        (state("canary-1", ready=False), False),
        (None, False),
    ],
    ids=["not ready", "leaving", "lost", "behind", "restarted", "forgotten"],
)
def test_only_one_that_serves_may_be_ready_in_a_moment(second: InstanceState | None, all_serve: bool) -> None:
    check = CapacityCheck(service=SERVICE, cohort=Cohort.CANARY, revision=7, instances=REFERENCES)
    states = [state("canary-0", actual=loaded())] + ([second] if second else [])
    assert check_readiness(check, states).all_serve is all_serve


def test_an_instance_is_lost_when_silent_missing_or_restarted() -> None:
    healthy = (state("canary-0"), state("canary-1"))
    assert lost_instance(REFERENCES, healthy) is None
    assert "no longer reports" in str(lost_instance(REFERENCES, healthy[:1]))
    assert "no longer reports" in str(lost_instance(REFERENCES, (healthy[0], state("canary-1", lost=True))))
    assert "restarted" in str(lost_instance(REFERENCES, (healthy[0], state("canary-1", boot_id="2"))))


def test_live_instances_are_those_of_a_cohort_that_stay_with_what_they_can_carry() -> None:
    states = [state("a", servable_capacity=2.5), state("b", lost=True), state("c", cohort=Cohort.STABLE)]
    states.append(state("d", draining=True, ready=False))
    (only,) = live_instances(states, Cohort.CANARY)
    assert (only.instance_id, only.capacity) == ("a", 2.5)
