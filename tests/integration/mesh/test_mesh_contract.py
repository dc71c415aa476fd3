"""One contract for every mesh adapter: the twin in memory, a real Envoy, both kinds of Kubernetes route."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.kubernetes_api.objects import accept, gateway_mesh, http_route, istio_mesh, virtual_service
from tests.kubernetes_api.server import kubernetes_api
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    MeshConfirmationTimeout,
    MeshDrift,
    MeshUnreachable,
    StaleFence,
    UnknownService,
)
from weightshift.local.envoy import RunningEnvoy, envoy_server
from weightshift.local.files import write_private
from weightshift.local.ports import free_ports
from weightshift.mesh.base import Mesh
from weightshift.mesh.envoy import EnvoyMesh
from weightshift.mesh.memory import MemoryMesh
from weightshift.mesh.open_mesh import open_mesh
from weightshift.settings import MeshSettings

SERVICE = Service(model="ranker", environment="test")


def adapter(server: RunningEnvoy, *, timeout: float = 2.0, confirm_timeout: float = 2.0) -> EnvoyMesh:
    return EnvoyMesh(
        agent_urls=[server.address.agent_url],
        token=SecretStr(server.address.agent_token),
        timeout=timeout,
        confirm_timeout=confirm_timeout,
    )


@asynccontextmanager
async def running_envoy(directory: Path) -> AsyncIterator[RunningEnvoy]:
    stable, canary = free_ports(2)
    async with envoy_server(directory, SERVICE, stable=[stable], canary=[canary]) as server:
        yield server


@pytest.fixture
async def envoy(tmp_path: Path) -> AsyncIterator[RunningEnvoy]:
    async with running_envoy(tmp_path) as server:
        yield server


@asynccontextmanager
async def on_memory(directory: Path) -> AsyncIterator[Mesh]:
    yield MemoryMesh()


@asynccontextmanager
async def on_envoy(directory: Path) -> AsyncIterator[Mesh]:
    async with running_envoy(directory) as server:
        mesh = adapter(server)
        yield mesh
        await mesh.aclose()


@asynccontextmanager
async def on_istio(directory: Path) -> AsyncIterator[Mesh]:
    async with kubernetes_api() as api:
        api.create("virtualservices", virtual_service())
        mesh = istio_mesh(api, directory)
        yield mesh
        await mesh.aclose()


@asynccontextmanager
async def on_gateway(directory: Path) -> AsyncIterator[Mesh]:
    async with kubernetes_api() as api:
        api.controller = accept
        api.create("httproutes", http_route())
        mesh = gateway_mesh(api, directory)
        yield mesh
        await mesh.aclose()


@pytest.fixture(params=[on_memory, on_envoy, on_istio, on_gateway], ids=lambda opened: opened.__name__[3:])
async def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Mesh]:
    async with request.param(tmp_path) as opened:
        yield opened


def fence(sequence: int, *, epoch: int = 1) -> Fence:
    return Fence(epoch=epoch, sequence=sequence)


async def test_a_new_service_has_everything_on_stable(mesh: Mesh) -> None:
    assert await mesh.read(SERVICE) == MeshState(split=TrafficSplit.all_to(Cohort.STABLE))


async def apply(
    mesh: Mesh, split: TrafficSplit, fence: Fence, expected: MeshState | None = None
) -> MeshState:
    """Write a split and see it on the data plane."""
    state = await mesh.write(SERVICE, split, fence, expected=expected)
    await mesh.confirm(SERVICE, state)
    return state


async def test_a_write_is_read_back_with_its_fence(mesh: Mesh) -> None:
    for sequence, weight in enumerate((5, 25, 50, 100, 0), start=1):
        expected = MeshState(split=TrafficSplit.with_canary(weight), fence=fence(sequence))
        assert await apply(mesh, expected.split, fence(sequence)) == expected
        assert await mesh.read(SERVICE) == expected


async def test_a_control_arm_and_sticky_users_are_read_back(mesh: Mesh) -> None:
    splits = (
        TrafficSplit.with_canary(25, sticky=True),
        TrafficSplit.with_canary(100, mirrored=5),
        TrafficSplit.with_canary(0),
    )
    for sequence, split in enumerate(splits, start=1):
        state = await apply(mesh, split, fence(sequence))
        assert await mesh.read(SERVICE) == state == MeshState(split=split, fence=fence(sequence))


async def test_every_stage_can_be_checked_before_it_is_written(mesh: Mesh) -> None:
    before = await mesh.read(SERVICE)
    await mesh.check(SERVICE, [TrafficSplit.with_canary(5), TrafficSplit.with_canary(100, mirrored=5)])
    assert await mesh.read(SERVICE) == before


async def test_a_command_builds_on_what_was_read(mesh: Mesh) -> None:
    first = await mesh.read(SERVICE)
    second = await apply(mesh, TrafficSplit.with_canary(5), fence(1), expected=first)
    await apply(mesh, TrafficSplit.with_canary(25), fence(2), expected=second)
    await apply(mesh, TrafficSplit.with_canary(25), fence(2), expected=second)
    newest = await mesh.read(SERVICE)
    with pytest.raises(MeshDrift, match="25"):
        await mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(3), expected=second)
    assert await mesh.read(SERVICE) == newest


async def test_what_was_overtaken_is_not_confirmed(mesh: Mesh) -> None:
    first = await apply(mesh, TrafficSplit.with_canary(5), fence(1))
    await apply(mesh, TrafficSplit.with_canary(25), fence(2))
    with pytest.raises(StaleFence, match="overtaken"):
        await mesh.confirm(SERVICE, first)


async def test_finalising_keeps_the_split_and_its_fence(mesh: Mesh) -> None:
    state = await apply(mesh, TrafficSplit.with_canary(0), fence(3))
    await mesh.finalise(SERVICE, fence(4))
    assert (await mesh.read(SERVICE)).split == state.split
    with pytest.raises(StaleFence):
        await mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(2))


async def test_a_repeat_changes_nothing(mesh: Mesh) -> None:
    first = await apply(mesh, TrafficSplit.with_canary(25), fence(1))
    assert await apply(mesh, TrafficSplit.with_canary(25), fence(1)) == first
    assert await mesh.read(SERVICE) == first


@pytest.mark.parametrize("older", [fence(4, epoch=2), fence(9, epoch=1)])
async def test_an_older_fence_is_refused_and_changes_nothing(mesh: Mesh, older: Fence) -> None:
    newest = await apply(mesh, TrafficSplit.with_canary(0), fence(5, epoch=2))
    with pytest.raises(StaleFence, match=r"2\.5"):
        await apply(mesh, TrafficSplit.with_canary(50), older)
    assert await mesh.read(SERVICE) == newest


async def test_one_fence_never_orders_two_splits(mesh: Mesh) -> None:
    newest = await apply(mesh, TrafficSplit.with_canary(25), fence(1))
    with pytest.raises(StaleFence, match="75/25"):
        await apply(mesh, TrafficSplit.with_canary(50), fence(1))
    assert await mesh.read(SERVICE) == newest


async def test_the_newest_of_concurrent_commands_wins(mesh: Mesh) -> None:
    commands = [(TrafficSplit.with_canary(weight), fence(weight)) for weight in range(1, 41)]
    outcomes = await asyncio.gather(*(apply(mesh, *command) for command in commands), return_exceptions=True)
    assert isinstance(outcomes[-1], MeshState)
    assert all(isinstance(outcome, MeshState | StaleFence) for outcome in outcomes)
    assert await mesh.read(SERVICE) == MeshState(split=TrafficSplit.with_canary(40), fence=fence(40))


async def test_the_memory_mesh_fails_stalls_and_is_edited_when_told() -> None:
    mesh = MemoryMesh()
    mesh.failure = MeshUnreachable()
    with pytest.raises(MeshUnreachable):
        await mesh.write(SERVICE, TrafficSplit.with_canary(5), fence(1))
    mesh.failure, mesh.follows = None, False
    state = await mesh.write(SERVICE, TrafficSplit.with_canary(5), fence(1))
    with pytest.raises(MeshConfirmationTimeout):
        await mesh.confirm(SERVICE, state)
    assert (await mesh.read(SERVICE)).split.canary == 0
    mesh.follows = True
    await mesh.confirm(SERVICE, state)
    assert await mesh.read(SERVICE) == state
    mesh.edit(SERVICE, TrafficSplit.with_canary(90))
    with pytest.raises(MeshDrift, match="10/90"):
        await mesh.write(SERVICE, TrafficSplit.with_canary(25), fence(2), expected=state)
    assert await apply(mesh, TrafficSplit.with_canary(0), fence(3)) == await mesh.read(SERVICE)
    assert [str(split) for _, split, _ in mesh.writes] == ["95/5", "100/0"]


async def test_the_fence_survives_agent_and_envoy(envoy: RunningEnvoy) -> None:
    mesh = adapter(envoy)
    newest = await apply(mesh, TrafficSplit.with_canary(25), fence(7))
    for process in (envoy.agent, envoy.envoy):
        await process.kill()
        await process.start()
    assert await mesh.read(SERVICE) == newest
    with pytest.raises(StaleFence):
        await mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(6))
    await mesh.aclose()


async def test_without_envoy_a_command_is_kept_and_shown_after_its_return(envoy: RunningEnvoy) -> None:
    mesh = adapter(envoy, confirm_timeout=0.2)
    await apply(mesh, TrafficSplit.with_canary(50), fence(1))
    await envoy.envoy.kill()
    with pytest.raises(MeshUnreachable):
        await mesh.read(SERVICE)
    with pytest.raises(MeshConfirmationTimeout, match="check that it runs"):
        await apply(mesh, TrafficSplit.with_canary(0), fence(2))
    await envoy.envoy.start()
    assert await mesh.read(SERVICE) == MeshState(split=TrafficSplit.with_canary(0), fence=fence(2))
    assert (await apply(mesh, TrafficSplit.with_canary(0), fence(2))).split.is_terminal
    await mesh.aclose()


async def test_without_its_agent_the_mesh_is_unreachable(envoy: RunningEnvoy) -> None:
    mesh = adapter(envoy)
    await envoy.agent.kill()
    with pytest.raises(MeshUnreachable, match="mesh agent"):
        await mesh.read(SERVICE)
    with pytest.raises(MeshUnreachable, match="mesh agent"):
        await mesh.write(SERVICE, TrafficSplit.with_canary(5), fence(1))
    await mesh.aclose()


async def test_another_service_is_unknown(envoy: RunningEnvoy) -> None:
    mesh = adapter(envoy)
    with pytest.raises(UnknownService, match="other"):
        await mesh.read(Service(model="other", environment="test"))
    await mesh.aclose()


def edit_route_file(directory: Path) -> None:
    """Give the canary 90 % the way somebody would who knows nothing of fences."""
    (path,) = directory.rglob("route.json")
    edited = path.with_suffix(".edited")
    text = path.read_text().replace('"weight": 95', '"weight": 10')
    edited.write_text(text.replace('"weight": 5', '"weight": 90'))
    edited.replace(path)


async def test_an_edited_route_file_is_noticed_and_overridden(envoy: RunningEnvoy, tmp_path: Path) -> None:
    mesh = adapter(envoy)
    first = await apply(mesh, TrafficSplit.with_canary(5), fence(1))
    edit_route_file(tmp_path)
    with pytest.raises(MeshDrift, match="10/90"):
        await mesh.write(SERVICE, TrafficSplit.with_canary(25), fence(2), expected=first)
    assert (await apply(mesh, TrafficSplit.with_canary(0), fence(3))).split == TrafficSplit.with_canary(0)
    await mesh.aclose()


async def test_several_envoys_do_the_same_or_nothing_is_confirmed(tmp_path: Path) -> None:
    token = SecretStr("a-token-of-both-mesh-agents")
    for name in ("first", "second"):
        write_private(tmp_path / name / "secrets/mesh-agent", token.get_secret_value())
    async with running_envoy(tmp_path / "first") as first, running_envoy(tmp_path / "second") as second:
        urls = f"{first.address.agent_url}, {second.address.agent_url}"
        mesh = open_mesh(MeshSettings(agent_url=urls, agent_token=token, confirm_timeout=0.5))
        both = await apply(mesh, TrafficSplit.with_canary(25), fence(1))
        assert await mesh.read(SERVICE) == both
        await second.envoy.kill()
        with pytest.raises(MeshConfirmationTimeout):
            await apply(mesh, TrafficSplit.with_canary(50), fence(2))
        await second.envoy.start()
        await second.agent.kill()
        with pytest.raises(MeshUnreachable, match="mesh agent"):
            await mesh.write(SERVICE, TrafficSplit.with_canary(0), fence(3))
        await second.agent.start()
        with pytest.raises(MeshUnreachable, match="different splits"):
            await mesh.read(SERVICE)
        assert await apply(mesh, TrafficSplit.with_canary(0), fence(3)) == await mesh.read(SERVICE)
        await mesh.aclose()
