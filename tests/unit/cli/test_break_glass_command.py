"""Traffic that is moved past the workflow: how it is ordered, to which side, and what is told of both."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from weightshift.cli import break_glass
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.release import Outcome, ReleaseRecord
from weightshift.contracts.target import Target, Targets
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import MeshConfirmationTimeout, RegistryUnreachable, StaleFence, Unauthorised

Run = Callable[..., Any]
SERVICE = Service(model="ranker", environment="test")
BREAK_GLASS = ("release", "rollback", "ranker", "-e", "test", "--operator", "ada", "--break-glass")


def target(cohort: Cohort, artifact_id: str) -> Target:
    return Target(
        service=SERVICE,
        cohort=cohort,
        revision=5,
        artifact_id=artifact_id,
        manifest_sha256="0" * 64,
        feature_schema="s",
    )


def holding(registry: Any, *, stable: str, canary: str) -> None:
    """The release of v42 is active, and the sides' targets are these."""
    newest = ReleaseRecord(
        release_id="R2",
        service=SERVICE,
        artifact_id="v42",
        operator="ci",
        epoch=2,
        outcome=None,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    first = newest.model_copy(
        update={"release_id": "R1", "artifact_id": "v41", "outcome": Outcome.PROMOTED, "epoch": 1}
    )
    targets = Targets(stable=target(Cohort.STABLE, stable), canary=target(Cohort.CANARY, canary))
    registry.answers.update(targets=targets, releases=(newest, first))


async def test_breaking_the_glass_writes_above_every_command_of_the_release(mesh: Any) -> None:
    await mesh.write(SERVICE, TrafficSplit.with_canary(25), Fence(epoch=3, sequence=9))
    await mesh.write(SERVICE, TrafficSplit.all_to(Cohort.STABLE), Fence.above_all(3))
    with pytest.raises(StaleFence):
        await mesh.write(SERVICE, TrafficSplit.with_canary(50), Fence(epoch=3, sequence=10))
    await mesh.write(SERVICE, TrafficSplit.with_canary(5), Fence(epoch=4, sequence=1))


def test_without_the_registry_traffic_goes_to_stable_and_it_is_said(
    run: Run, releases: Any, registry: Any, mesh: Any
) -> None:
    registry.answers["targets"] = RegistryUnreachable("the registry does not answer")
    result = run(*BREAK_GLASS)
    assert (result.code, releases.calls) == (0, [])
    ((_, split, fence),) = mesh.writes
    assert (str(split), fence) == ("100/0", Fence.above_all(0))
    assert mesh.closed
    assert "not known, the registry did not say: the registry does not answer" in result.out
    assert "next: weightshift release rollback" in result.out


def test_who_and_why_is_recorded_after_the_move(run: Run, registry: Any, mesh: Any) -> None:
    holding(registry, stable="v41", canary="v42")
    moved: list[int] = []
    registry.answers["record_broken_glass"] = lambda *_: moved.append(len(mesh.writes))
    result = run(*BREAK_GLASS, "--reason", "Temporal is down")
    (told,) = [call for call in registry.calls if call[0] == "record_broken_glass"]
    service, broken = told[1:]
    assert (service, broken.operator, broken.reason) == (SERVICE, "ada", "Temporal is down")
    assert (str(broken.before), str(broken.split), broken.fence) == ("100/0", "100/0", Fence.above_all(0))
    assert (moved, "recorded in the audit chain" in result.out, result.err) == ([1], True, "")
    assert "-e test --reason 'Temporal is down' once a worker goes on" in result.out
    assert "the audit chain has who and why" not in result.out


@pytest.mark.parametrize("failure", [RegistryUnreachable("it is away"), Unauthorised("it is away")])
def test_where_it_is_not_recorded_that_is_said_and_traffic_is_moved(
    run: Run, registry: Any, mesh: Any, failure: Exception
) -> None:
    registry.answers["record_broken_glass"] = failure
    result = run(*BREAK_GLASS, "--reason", "Temporal\x1b is down")
    assert (result.code, len(mesh.writes)) == (0, 1)
    assert "not in the audit chain yet: it is away" in result.err
    assert "targets are sealed, and the audit chain has who and why" in result.out


def test_a_move_that_is_not_shown_yet_is_recorded_too(run: Run, registry: Any, mesh: Any) -> None:
    mesh.follows = False
    assert run(*BREAK_GLASS).code == MeshConfirmationTimeout.exit_code
    assert "record_broken_glass" in [name for name, *_ in registry.calls]


def test_a_registry_that_hangs_keeps_nothing_back(
    run: Run, registry: Any, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(break_glass, "_LONGEST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(registry, "targets", hang, raising=False)
    monkeypatch.setattr(registry, "record_broken_glass", hang, raising=False)
    result = run(*BREAK_GLASS)
    assert (result.code, len(mesh.writes)) == (0, 1)
    assert "yet: the registry took too long" in result.err
    assert "did not say: the registry took too long" in result.out


def test_under_the_parachute_the_side_that_holds_the_way_back_is_named(
    run: Run, registry: Any, mesh: Any
) -> None:
    holding(registry, stable="v42", canary="v41")
    result = run(*BREAK_GLASS)
    assert "stable holds v42, which was released last, and canary v41: --cohort canary" in result.err
    assert "by their targets stable holds v42, canary holds v41" in result.out
    second = run(*BREAK_GLASS, "--cohort", "canary")
    assert (second.code, second.err) == (0, "")
    assert [str(split) for _, split, _ in mesh.writes] == ["100/0", "0/100"]


def test_a_side_that_holds_something_else_is_not_warned_of(run: Run, registry: Any, mesh: Any) -> None:
    holding(registry, stable="v41", canary="v42")
    assert run(*BREAK_GLASS).err == ""
    assert "--cohort stable" in run(*BREAK_GLASS, "--cohort", "canary").err


def test_where_both_sides_hold_it_another_artifact_has_to_be_released(
    run: Run, registry: Any, mesh: Any
) -> None:
    holding(registry, stable="v42", canary="v42")
    assert "no split leads away from it: release another artifact" in run(*BREAK_GLASS).err


def test_a_side_is_for_the_broken_glass_alone_and_keeps_no_rollback_out(
    run: Run, releases: Any, mesh: Any
) -> None:
    result = run(*BREAK_GLASS[:-1], "--cohort", "canary")
    assert ([name for name, *_ in releases.calls], mesh.writes) == (["rollback"], [])
    assert "cohort is for --break-glass alone" in result.err
