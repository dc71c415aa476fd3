"""Who may be admitted."""

from datetime import UTC, datetime

import pytest

from activities.admission_rules import (
    check_alike,
    left_unfinished,
    require_alike,
    require_idle_canary,
    schema_change,
    unlike_canary,
)
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Outcome, ReleaseRecord, ReleaseRequest
from weightshift.contracts.target import Target, Targets
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import CanaryDiffers, Conflict, FeatureSchemaChanged
from weightshift.way_back import going_back_key

SERVICE = Service(model="ranker", environment="prod")
STABLE = Target(
    service=SERVICE,
    cohort=Cohort.STABLE,
    revision=7,
    artifact_id="v41",
    manifest_sha256="0" * 64,
    feature_schema="ranker-v1",
    serve_floor=7,
)
REQUEST = ReleaseRequest(release_id="R1", service=SERVICE, artifact_id="v42", operator="ci")


def candidate(feature_schema: str) -> ArtifactRecord:
    return ArtifactRecord(
        model="ranker",
        artifact_id="v42",
        manifest_uri="memory://v42",
        manifest_sha256="1" * 64,
        feature_schema=feature_schema,
    )


def test_the_same_schema_and_a_first_release_are_no_change() -> None:
    assert schema_change(REQUEST, candidate("ranker-v1"), STABLE) is None
    assert schema_change(REQUEST, candidate("ranker-v2"), None) is None


def test_another_schema_is_refused_by_name() -> None:
    with pytest.raises(FeatureSchemaChanged, match=r"v41 .* ranker-v1, and v42 takes ranker-v2; add --allow"):
        schema_change(REQUEST, candidate("ranker-v2"), STABLE)


@pytest.mark.parametrize(
    "said",
    [{"allow_schema_change": True}, {"request_key": going_back_key("R0")}],
    ids=["allowed", "way back"],
)
def test_another_schema_is_told_where_callers_are_ready_or_know_it(said: dict[str, object]) -> None:
    told = schema_change(REQUEST.model_copy(update=said), candidate("ranker-v2"), STABLE)
    assert told is not None
    assert told.endswith("callers have to be ready for it")


H200 = "NVIDIA H200"
RECORDS = tuple(
    ReleaseRecord(
        release_id=f"R-{artifact_id}",
        service=SERVICE,
        artifact_id=artifact_id,
        operator="ci",
        epoch=1,
        outcome=outcome,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    for artifact_id, outcome in (
        ("v41", Outcome.PROMOTED),
        ("v40", Outcome.PROMOTED),
        ("v39", Outcome.ROLLED_BACK),
    )
)


def instance(
    name: str, device: str = H200, build: str = "b1", *, lost: bool = False, draining: bool = False
) -> InstanceState:
    report = InstanceReport(
        instance_id=name,
        boot_id="1",
        service=SERVICE,
        cohort=Cohort(name.partition("-")[0]),
        device=device,
        runtime_build=build,
        draining=draining,
    )
    return InstanceState(report=report, age_seconds=0, lost=lost)


@pytest.mark.parametrize(
    "states",
    [
        [instance("stable-0"), instance("canary-0")],
        [instance("stable-0"), instance("canary-0", "NVIDIA L4"), instance("canary-1")],
        [instance("stable-0"), instance("stable-1", "cpu"), instance("canary-0")],
        [instance("stable-0", "cpu", "b1"), instance("canary-0", "cpu", "b2")],
        [instance("stable-0", ""), instance("canary-0")],
        [instance("stable-0", "NVIDIA L4", lost=True), instance("canary-0")],
        [instance("stable-0", "NVIDIA L4", draining=True), instance("canary-0")],
    ],
    ids=["alike", "two canaries", "a CPU too", "CPUs", "unknown", "lost", "draining"],
)
def test_what_the_canary_tries_as_stable_would_is_admitted(states: list[InstanceState]) -> None:
    assert check_alike(REQUEST, states, STABLE, RECORDS) is None
    require_alike(states)


@pytest.mark.parametrize(
    "canary",
    [
        [instance("canary-0", "NVIDIA L4")],
        [instance("canary-0", build="b2")],
        [instance("canary-0", "NVIDIA L4"), instance("canary-1", build="b2")],
        [instance("canary-0", lost=True), instance("canary-1", "cpu")],
        [instance("canary-0", "")],
    ],
    ids=["another GPU", "another build", "both, but not together", "lost", "unknown"],
)
def test_a_gpu_that_no_canary_instance_has_is_refused_by_the_names_of_its_instances(
    canary: list[InstanceState],
) -> None:
    states = [instance("stable-1"), instance("stable-0"), *canary]
    with pytest.raises(
        CanaryDiffers, match=r"stable's stable-0, stable-1 \(b1 on NVIDIA H200\); start a canary"
    ):
        check_alike(REQUEST, states, STABLE, RECORDS)


def test_every_kind_of_stable_needs_a_canary_instance() -> None:
    states = [instance("stable-0"), instance("stable-1", "NVIDIA L4"), instance("canary-0")]
    found = unlike_canary(states)
    assert found is not None
    assert "stable-1 (b1 on NVIDIA L4)" in found
    assert "stable-0" not in found


def test_neither_a_first_release_nor_one_that_goes_back_is_refused() -> None:
    states = [instance("stable-0"), instance("canary-0", "NVIDIA L4")]
    assert check_alike(REQUEST, states, None, ()) is None
    back = REQUEST.model_copy(update={"request_key": going_back_key("R0"), "artifact_id": "v40"})
    assert "stable-0" in (check_alike(back, states, STABLE, RECORDS) or "")
    elsewhere = back.model_copy(update={"artifact_id": "v39"})
    with pytest.raises(CanaryDiffers):
        check_alike(elsewhere, states, STABLE, RECORDS)


def test_pods_that_are_not_there_yet_are_compared_later() -> None:
    plan = REQUEST.plan.model_copy(update={"canary_replicas": 2})
    assert check_alike(REQUEST.model_copy(update={"plan": plan}), [instance("stable-0")], STABLE, ()) is None


def ended(artifact_id: str, outcome: Outcome, *, going_back: bool = False) -> ReleaseRecord:
    key = going_back_key("R") if going_back else None
    return RECORDS[0].model_copy(update={"artifact_id": artifact_id, "outcome": outcome, "request_key": key})


TO_STABLE = r"take it to stable \(v41\) with `[^`]+ --break-glass`"
FIRST, SECOND = ended("v40", Outcome.PROMOTED), ended("v41", Outcome.PROMOTED)


@pytest.mark.parametrize(
    ("records", "ways"),
    [
        ((SECOND, FIRST), rf"{TO_STABLE}, or go back to v40 with `[^`]+ prod`$"),
        ((ended("v42", Outcome.ROLLED_BACK), SECOND, FIRST), rf"{TO_STABLE}$"),
        ((SECOND,), rf"{TO_STABLE}$"),
        (
            (
                ended("v41", Outcome.ROLLED_BACK, going_back=True),
                ended("v42", Outcome.PROMOTED),
                SECOND,
                FIRST,
            ),
            r"unjudged; go back to v41 with `[^`]+ prod`$",
        ),
        (
            (ended("v41", Outcome.ROLLED_BACK), ended("v42", Outcome.PROMOTED), SECOND),
            r"unjudged; go back with `[^`]+ --to ARTIFACT`$",
        ),
    ],
    ids=["promoted", "rolled back", "nothing before", "return unfinished", "release unfinished"],
)
def test_only_what_leads_on_is_offered_where_the_canary_carries_traffic(
    records: tuple[ReleaseRecord, ...], ways: str
) -> None:
    carried = TrafficSplit.all_to(Cohort.CANARY)
    with pytest.raises(Conflict, match=ways):
        require_idle_canary(REQUEST, carried, Targets(stable=STABLE), records)


def test_a_return_that_did_not_get_through_is_to_be_finished() -> None:
    tried = ended("v41", Outcome.ROLLED_BACK, going_back=True)
    left = left_unfinished(REQUEST, (tried, ended("v42", Outcome.PROMOTED), SECOND), STABLE)
    assert left is not None
    assert "going back to v41 did not get through; finish it with `weightshift" in str(left.refusal())
