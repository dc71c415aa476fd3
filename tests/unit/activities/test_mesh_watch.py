from datetime import UTC, datetime, timedelta

import pytest

from activities.mesh_watch import MeshWatch
from weightshift.contracts.commands import Observation
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.plan import Plan
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable, RouteInvalid
from weightshift.mesh.memory import MemoryMesh

SERVICE = Service(model="ranker", environment="test")
FENCE = Fence(epoch=1, sequence=1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def observation(traffic: MeshState | None) -> Observation:
    return Observation(
        release_id="release",
        service=SERVICE,
        stage=Plan().resolved_stages()[0],
        interval=timedelta(seconds=10),
        started_at=datetime.now(UTC),
        canary_revision=2,
        stable_revision=1,
        canary=(),
        traffic=traffic,
    )


@pytest.fixture
async def mesh() -> MemoryMesh:
    mesh = MemoryMesh()
    await mesh.write(SERVICE, TrafficSplit.with_canary(25), FENCE)
    return mesh


async def test_an_edit_is_noticed_within_an_interval(mesh: MemoryMesh) -> None:
    clock = Clock()
    watch = MeshWatch(mesh=mesh, observation=observation(await mesh.read(SERVICE)), clock=clock)
    assert await watch.problem(at_once=False) is None
    mesh.edit(SERVICE, TrafficSplit.with_canary(90))
    assert await watch.problem(at_once=False) is None, "read once per interval"
    clock.now = 10.0
    assert "10/90" in (await watch.problem(at_once=False) or "")


async def test_a_stage_never_ends_without_a_look(mesh: MemoryMesh) -> None:
    watch = MeshWatch(mesh=mesh, observation=observation(await mesh.read(SERVICE)), clock=Clock())
    assert await watch.problem(at_once=True) is None
    await mesh.write(SERVICE, TrafficSplit.with_canary(0), Fence.above_all(1))
    assert "100/0" in (await watch.problem(at_once=True) or "")


async def test_a_mesh_that_is_away_says_nothing_and_a_lost_route_does(mesh: MemoryMesh) -> None:
    watch = MeshWatch(mesh=mesh, observation=observation(await mesh.read(SERVICE)), clock=Clock())
    mesh.failure = MeshUnreachable()
    assert await watch.problem(at_once=True) is None
    mesh.failure = RouteInvalid("the route is gone")
    assert await watch.problem(at_once=True) == "the route is gone"


async def test_a_stage_that_began_without_a_read_back_is_not_watched(mesh: MemoryMesh) -> None:
    mesh.failure = RouteInvalid()
    watch = MeshWatch(mesh=mesh, observation=observation(None), clock=Clock())
    assert await watch.problem(at_once=True) is None
