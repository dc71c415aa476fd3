"""Who may make an artifact ready, what a rejection tells, and the approvals of releases."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.integration.registry.builders import (
    make_ready,
    publication_of,
    record_of,
    report_of,
)
from weightshift.contracts.approval import ApprovalPolicy, ApprovalRequest, ArtifactUse
from weightshift.contracts.health import Incident
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import ArtifactState
from weightshift.errors import Conflict, OperationConflict, UnknownApproval
from weightshift.registry.base import Registry
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.store import PostgresRegistry

MINUTE = timedelta(minutes=1)
Open = Callable[[ApprovalPolicy], Registry]


@pytest.fixture(params=["memory", "postgres"])
def open_registry(request: pytest.FixtureRequest) -> Open:
    if request.param == "memory":
        return lambda policy: MemoryRegistry(approval_policy=policy)
    database = request.getfixturevalue("postgres_registry").database
    return lambda policy: PostgresRegistry(database=database, approval_policy=policy)


@pytest.mark.parametrize(
    ("required", "pusher_may_approve", "approvers", "ready_after"),
    [
        (1, False, ["bob"], 1),
        (1, False, ["ada", "bob"], 2),
        (1, True, ["ada"], 1),
        (2, False, ["ada", "bob"], 2),
        (2, False, ["bob", "bob", "grace"], 3),
        (3, False, ["bob", "grace", "ada"], 3),
        (2, True, ["ada", "ada", "bob"], 3),
    ],
)
async def test_distinct_people_make_an_artifact_ready_and_the_pusher_alone_does_not(
    open_registry: Open,
    service: Service,
    required: int,
    pusher_may_approve: bool,
    approvers: list[str],
    ready_after: int,
) -> None:
    policy = ApprovalPolicy(required=required, pusher_may_approve=pusher_may_approve)
    registry = open_registry(policy)
    await registry.register_artifact(record_of(service), operator="ada")
    states = [
        (await registry.approve_artifact(service.model, "v41", operator=name)).state for name in approvers
    ]
    pending = [ArtifactState.PENDING] * (ready_after - 1)
    assert states == [*pending, ArtifactState.READY]
    record = await registry.artifact(service.model, "v41")
    assert record.approvers == tuple(dict.fromkeys(approvers))
    assert record.pushed_by == "ada"


async def test_the_approvers_are_in_the_audit_rows(open_registry: Open, service: Service) -> None:
    registry = open_registry(ApprovalPolicy(required=2))
    await registry.register_artifact(record_of(service), operator="ada")
    for name in ("ada", "bob"):
        await registry.approve_artifact(service.model, "v41", operator=name)
    rows = await registry.audit(Service(model=service.model, environment=ARTIFACT_ENVIRONMENT))
    assert [(row.operator, row.data["state"]) for row in rows if row.step == "artifact-approved"] == [
        ("ada", "pending"),
        ("bob", "ready"),
    ]
    await registry.publish(publication_of(service))
    (row,) = await registry.audit(service)
    assert row.data["artifact_approvers"] == ["ada", "bob"]
    given = {one.operator: one.recorded_at.isoformat() for one in rows if one.step == "artifact-approved"}
    assert row.data["artifact_approved_at"] == given
    assert set(given) == {"ada", "bob"}


async def test_what_a_client_says_about_approval_is_ignored(registry: Registry, service: Service) -> None:
    forged = record_of(service).model_copy(
        update={"approvers": ("eve", "mallory"), "pushed_by": "eve", "state": ArtifactState.READY}
    )
    record = await registry.register_artifact(forged, operator="ada")
    assert (record.state, record.approvers, record.pushed_by) == (ArtifactState.PENDING, (), "ada")


async def test_rejecting_an_artifact_in_use_names_where_and_counts(
    registry: Registry, service: Service
) -> None:
    await make_ready(registry, service, "v41", "v42")
    await registry.publish(publication_of(service))
    await registry.publish(publication_of(service, artifact_id="v42", cohort=Cohort.STABLE))
    for instance_id in ("gpu-1", "gpu-0"):
        await registry.report(report_of(service, instance_id, revision=1))
    await registry.report(report_of(service, "gpu-2", revision=2, artifact_id="v42", cohort=Cohort.STABLE))
    await registry.report(report_of(service, "gpu-3", revision=1, cohort=Cohort.STABLE))
    for _ in range(2):
        rejected = await registry.reject_artifact(service.model, "v41", operator="bob", reason="biased")
        assert rejected.state is ArtifactState.REJECTED
        assert set(rejected.in_use) == {
            ArtifactUse(
                service=service,
                cohort=Cohort.CANARY,
                desired_revision=1,
                instance_ids=("gpu-0", "gpu-1"),
            ),
            ArtifactUse(service=service, cohort=Cohort.STABLE, instance_ids=("gpu-3",)),
        }
    health = await registry.health(lost_after=MINUTE, mismatch_after=MINUTE)
    counts = {one.incident: one.count for one in health.incidents if one.service == service}
    assert counts == {Incident.REJECTED_IN_USE: 1}


async def test_rejecting_an_artifact_nobody_uses_is_no_incident(registry: Registry, service: Service) -> None:
    await make_ready(registry, service, "v41")
    rejected = await registry.reject_artifact(service.model, "v41", operator="bob", reason="biased")
    assert rejected.in_use == ()
    health = await registry.health(lost_after=MINUTE, mismatch_after=MINUTE)
    assert service not in health.services


async def test_a_rejected_artifact_is_never_published_again(registry: Registry, service: Service) -> None:
    await make_ready(registry, service, "v41")
    await registry.reject_artifact(service.model, "v41", operator="bob", reason="biased")
    with pytest.raises(Conflict, match="rejected"):
        await registry.approve_artifact(service.model, "v41", operator="grace")
    with pytest.raises(Conflict, match="rejected"):
        await registry.publish(publication_of(service))


def request_of(
    service: Service, operation_id: str = "approve-1", reason: str = "looks good"
) -> ApprovalRequest:
    return ApprovalRequest(
        service=service, release_id="R1", artifact_id="v42", operation_id=operation_id, reason=reason
    )


async def test_an_approval_of_a_release_has_an_id_that_can_be_looked_up(
    registry: Registry, service: Service
) -> None:
    approval = await registry.approve_release(request_of(service), operator="bob")
    assert (approval.service, approval.release_id, approval.operator) == (service, "R1", "bob")
    assert approval.artifact_id == "v42"
    assert approval.expires_at == approval.created_at + timedelta(days=1)
    assert await registry.approval(approval.approval_id) == approval
    with pytest.raises(UnknownApproval, match="nonsense"):
        await registry.approval("nonsense")


async def test_a_repeated_approval_returns_the_first(registry: Registry, service: Service) -> None:
    first = await registry.approve_release(request_of(service), operator="bob")
    assert await registry.approve_release(request_of(service), operator="bob") == first
    assert len(await registry.audit(service)) == 1
    with pytest.raises(OperationConflict):
        await registry.approve_release(request_of(service), operator="eve")
    with pytest.raises(OperationConflict):
        await registry.approve_release(request_of(service, reason="other"), operator="bob")


async def test_a_publication_records_its_releases_approvals_and_what_it_replaces(
    registry: Registry, service: Service
) -> None:
    await make_ready(registry, service, "v41", "v42")
    approval = await registry.approve_release(request_of(service, "approve-9"), operator="bob")
    first = await registry.publish(publication_of(service, reason="weekly", release_id="R0"))
    await registry.publish(publication_of(service, artifact_id="v42", expected_revision=1))
    _, old, new = await registry.audit(service)
    assert (old.data["previous"], old.data["approvals"]) == (None, [])
    assert old.data["publication"]["reason"] == "weekly"
    assert (new.data["previous"]["revision"], new.data["previous"]["artifact_id"]) == (first.revision, "v41")
    assert (new.data["target"]["revision"], new.data["target"]["artifact_id"]) == (2, "v42")
    assert [one["approval_id"] for one in new.data["approvals"]] == [approval.approval_id]


async def test_an_approval_takes_no_other_commands_operation_id(registry: Registry, service: Service) -> None:
    await make_ready(registry, service, "v41")
    other = Service(model="other", environment=service.environment)
    publication = publication_of(service)
    for operation_id in (publication.operation_id, "admit:R1", "complete:R1"):
        await registry.approve_release(request_of(other, operation_id), operator="eve")
        await registry.approve_release(request_of(service, operation_id), operator="eve")
    assert (await registry.publish(publication)).revision == 1


@pytest.mark.parametrize("approval_id", ["", "a\0b", "nonsense", "x" * 10_000, "\x1b[31m"])
async def test_an_id_that_was_never_issued_is_unknown(registry: Registry, approval_id: str) -> None:
    with pytest.raises(UnknownApproval) as caught:
        await registry.approval(approval_id)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()
