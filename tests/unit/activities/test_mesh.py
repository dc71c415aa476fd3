"""The activity that moves traffic: which refusals are final, and what a rollback does not wait for."""

import dataclasses
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.mesh import MeshActivities
from tests.unit.activities.meter import CountingMeter
from weightshift.contracts.commands import MeshWrite
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable, RouteInvalid, Unauthorised, WeightshiftError
from weightshift.mesh.memory import MemoryMesh

SERVICE = Service(model="ranker", environment="test")


def command(sequence: int, canary: int, **fields: Any) -> MeshWrite:
    split = TrafficSplit.with_canary(canary)
    return MeshWrite(service=SERVICE, split=split, fence=Fence(epoch=1, sequence=sequence), **fields)


async def written(
    mesh: MemoryMesh, asked: MeshWrite, *, attempt: int = 1
) -> tuple[MeshState, dict[str, int]]:
    """Run one attempt; returns its answer and what it counted."""
    meter = CountingMeter()
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, attempt=attempt)
    environment.metric_meter = meter  # type: ignore[assignment]
    try:
        return await environment.run(MeshActivities(mesh=mesh).write, asked), meter.counted
    except ApplicationError as error:
        error.counted = meter.counted  # type: ignore[attr-defined]
        raise


@pytest.mark.parametrize(
    ("failure", "final", "final_in_rollbacks"),
    [
        (MeshUnreachable(), False, False),
        (RouteInvalid(), True, False),
        (Unauthorised(), True, False),
    ],
)
async def test_a_rollback_is_tried_again_whatever_is_refused(
    failure: WeightshiftError, final: bool, final_in_rollbacks: bool
) -> None:
    mesh = MemoryMesh()
    mesh.failure = failure
    for must_happen, expected in ((False, final), (True, final_in_rollbacks)):
        with pytest.raises(ApplicationError) as raised:
            await written(mesh, command(1, 0, must_happen=must_happen))
        assert raised.value.type == type(failure).__name__
        assert raised.value.non_retryable is expected


async def test_a_newer_command_ends_a_rollback_too() -> None:
    mesh = MemoryMesh()
    await written(mesh, command(9, 40))
    with pytest.raises(ApplicationError) as raised:
        await written(mesh, command(1, 0, must_happen=True))
    assert raised.value.non_retryable


async def test_an_edited_split_is_counted_and_overridden_by_a_rollback() -> None:
    mesh = MemoryMesh()
    first, _ = await written(mesh, command(1, 5))
    mesh.edit(SERVICE, TrafficSplit.with_canary(80))
    with pytest.raises(ApplicationError) as raised:
        await written(mesh, command(2, 25, expected=first))
    assert (raised.value.type, raised.value.non_retryable) == ("MeshDrift", True)
    assert raised.value.counted == {"weightshift_mesh_drift": 1}  # type: ignore[attr-defined]
    state, counted = await written(mesh, command(3, 0, must_happen=True))
    assert (state.split.canary, counted) == (0, {})


async def test_a_stage_waits_for_its_proxies_and_a_rollback_only_so_long() -> None:
    mesh = MemoryMesh()
    mesh.follows = False
    for attempt, must_happen in ((1, False), (9, False), (1, True), (2, True)):
        with pytest.raises(ApplicationError) as raised:
            await written(mesh, command(1, 0, must_happen=must_happen), attempt=attempt)
        assert (raised.value.type, raised.value.non_retryable) == ("MeshConfirmationTimeout", False)
    state, counted = await written(mesh, command(1, 0, must_happen=True), attempt=3)
    assert (state.split.canary, state.confirmed) == (0, False)
    assert counted == {"weightshift_mesh_unconfirmed": 1}
    state, _ = await written(mesh, command(1, 0, may_go_unconfirmed=True), attempt=3)
    assert not state.confirmed


async def test_a_write_that_stays_stuck_is_counted() -> None:
    _, counted = await written(MemoryMesh(), command(1, 0), attempt=6)
    assert counted == {"weightshift_mesh_write_stuck": 1}
