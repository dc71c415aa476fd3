"""`release approve`, and approvals that a release brings along."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome, ReleasePhase
from weightshift.errors import ApprovalInvalid, Unauthorised
from weightshift.registry.answers import Identity

Run = Callable[..., Any]
SERVICE = Service(model="ranker", environment="test")
IN_TEST = ("ranker", "-e", "test")
START = ("release", "start", "ranker", "v2", "-e", "test")


def issued(request: ApprovalRequest, approval_id: str = "A1") -> Approval:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    return Approval(
        approval_id=approval_id,
        service=request.service,
        release_id=request.release_id,
        artifact_id=request.artifact_id,
        expires_at=now + request.lifetime,
        operator="ada",
        reason=request.reason,
        created_at=now,
    )


def given_for(release_id: str, approval_id: str = "A1") -> Approval:
    request = ApprovalRequest(service=SERVICE, release_id=release_id, artifact_id="v2", operation_id="o")
    return issued(request, approval_id)


def test_approving_asks_the_registry_and_then_the_release(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["approve_release"] = issued
    result = run("release", "approve", *IN_TEST, "--reason", "curves are fine")
    assert result.code == 0
    assert "approved by ada" in result.out
    (request,) = [call[1] for call in registry.calls if call[0] == "approve_release"]
    assert (request.release_id, request.artifact_id, request.reason) == ("R1", "v2", "curves are fine")
    assert releases.calls == [("status", SERVICE), ("approve", SERVICE, "A1")]


def test_two_approvals_are_two_operations(run: Run, registry: Any) -> None:
    registry.answers["approve_release"] = issued
    for _ in range(2):
        run("release", "approve", *IN_TEST)
    first, second = [call[1].operation_id for call in registry.calls if call[0] == "approve_release"]
    assert first != second


def test_a_release_that_has_ended_cannot_be_approved(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    releases.statuses = [make_status(outcome=Outcome.PROMOTED)]
    result = run("release", "approve", *IN_TEST)
    assert (result.code, registry.calls) == (4, [])
    assert "has ended as promoted" in result.err


def test_a_refused_approval_says_why(run: Run, releases: Any, registry: Any, monkeypatch: Any) -> None:
    registry.answers["approve_release"] = issued

    async def refuse(service: Service, approval_id: str) -> None:
        raise ApprovalInvalid("no approval is waited for")

    monkeypatch.setattr(releases, "approve", refuse)
    result = run("release", "approve", *IN_TEST)
    assert result.code == 2
    assert "no approval is waited for" in result.err


def test_what_waits_for_nobody_gets_no_approval_on_record(
    run: Run, releases: Any, registry: Any, make_status: Any
) -> None:
    releases.statuses = [make_status(approval_refusal="no approval is waited for")]
    result = run("release", "approve", *IN_TEST)
    assert (result.code, registry.calls) == (2, [])
    assert "no approval is waited for" in result.err


def test_approving_ahead_names_the_release_to_be_started(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["approve_release"] = issued
    result = run("release", "approve", *IN_TEST, "--artifact", "v2")
    assert result.code == 0
    assert releases.calls == []
    assert "next: weightshift release start ranker v2 -e test --approval A1" in result.out
    joined = run("release", "approve", *IN_TEST, "--artifact", "v2", "--release", "R7", "--json")
    assert json.loads(joined.out)["release_id"] == "R7"


def test_a_release_takes_its_id_from_the_approvals(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["approval"] = lambda service, approval_id: given_for("R7", approval_id)
    assert run(*START, "--approval", "A1, A2").code == 0
    ((_, request),) = releases.calls
    assert (request.release_id, request.approvals) == ("R7", ("A1", "A2"))


def test_approvals_of_different_releases_do_not_mix(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["approval"] = lambda service, approval_id: given_for(f"R-{approval_id}", approval_id)
    result = run(*START, "--approval", "A1,A2")
    assert (result.code, releases.calls) == (2, [])
    assert "R-A1 and R-A2" in result.err


@pytest.mark.parametrize("verb", ["status", "pause"])
def test_what_a_release_waits_for_is_shown(run: Run, releases: Any, make_status: Any, verb: str) -> None:
    waiting_for = "1 approval before 50 %: weightshift release approve ranker -e test"
    phase = ReleasePhase.AWAITING_APPROVAL
    releases.statuses = [make_status(phase=phase, held=True, waiting_for=waiting_for)]
    assert "weightshift release approve ranker -e test" in run("release", verb, *IN_TEST).out.replace(
        "\n", " "
    )


def test_following_a_release_that_waits_for_people_says_whom_to_ask(
    run: Run, releases: Any, make_status: Any
) -> None:
    phase = ReleasePhase.AWAITING_APPROVAL
    releases.statuses = [make_status(phase=phase, held=True, waiting_for="1 approval before 50 %: …")]
    result = run(*START, "--wait")
    assert result.code == 6
    assert "next: weightshift release approve ranker -e test" in result.out


@pytest.fixture
def waiting_plan(tmp_path: Path) -> str:
    (tmp_path / "plan.json").write_text(json.dumps({"stages": [5, {"weight": 50, "approvals": 1}, 100]}))
    return str(tmp_path / "plan.json")


@pytest.mark.parametrize("more", [(), ("--operator", "ada")])
def test_whoever_asks_for_a_release_that_waits_for_people_is_named_by_the_token(
    run: Run, releases: Any, registry: Any, waiting_plan: str, more: tuple[str, ...]
) -> None:
    registry.answers["identity"] = Identity(subject="ada", role="operator", model="*", environment="*")
    assert run(*START, "--plan", waiting_plan, *more).code == 0
    ((_, request),) = releases.calls
    assert request.operator == "ada"


def test_nobody_asks_under_another_name_for_what_people_have_to_approve(
    run: Run, releases: Any, registry: Any, waiting_plan: str
) -> None:
    registry.answers["identity"] = Identity(subject="ada", role="operator", model="*", environment="*")
    result = run(*START, "--plan", waiting_plan, "--operator", "grace")
    assert (result.code, releases.calls) == (2, [])
    assert "the registry's token says who asks, ada" in result.err


def test_a_release_that_waits_for_nobody_needs_no_token(run: Run, releases: Any, registry: Any) -> None:
    registry.answers["targets"] = Unauthorised("the token is not set")
    result = run(*START, "--operator", "grace")
    assert (result.code, releases.calls[0][1].operator) == (0, "grace")
    assert "not known: the token is not set" in result.err
