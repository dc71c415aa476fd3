from collections.abc import Callable
from typing import cast

from weightshift.client import ReleaseClient
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.release import (
    Outcome,
    ReleasePhase,
    ReleaseRequest,
    ReleaseStatus,
    RollbackRequest,
)
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import ReleaseActive
from weightshift.local.demo_releases import PLAN, DemoReleases
from weightshift.mesh.memory import MemoryMesh

SERVICE = Service(model="ranker", environment="local")


def status(canary: int, outcome: Outcome | None = None, phase: ReleasePhase | None = None) -> ReleaseStatus:
    return ReleaseStatus(
        release_id="R1",
        service=SERVICE,
        artifact_id="v9",
        phase=phase or ReleasePhase.OBSERVING,
        split=TrafficSplit.with_canary(canary),
        outcome=outcome,
        reason="signalled by the demo (demo)",
    )


class ScriptedClient:
    """Plays back statuses; a rollback signal reaches the mesh like a worker's write would."""

    def __init__(self, *statuses: ReleaseStatus) -> None:
        self.mesh = MemoryMesh()
        self.statuses = statuses
        self.settling = [ReleasePhase.PARACHUTE, ReleasePhase.DONE]
        self.active_for = 0
        self.requests: list[ReleaseRequest] = []
        self.signals: list[RollbackRequest] = []

    async def start(self, request: ReleaseRequest) -> str:
        if self.active_for:
            self.active_for -= 1
            raise ReleaseActive
        self.requests.append(request)
        return "run-1"

    async def wait(
        self, service: Service, *, on_status: Callable[[ReleaseStatus], None], run_id: str
    ) -> ReleaseStatus:
        assert run_id == "run-1"
        for number, current in enumerate(self.statuses):
            if current.split is not None:
                await self.mesh.write(service, current.split, Fence(epoch=1, sequence=number))
            on_status(current)
        return self.statuses[-1]

    async def status(self, service: Service) -> ReleaseStatus:
        return self.statuses[-1].model_copy(update={"phase": self.settling.pop(0)})

    async def signal_rollback(self, service: Service, request: RollbackRequest) -> None:
        self.signals.append(request)
        await self.mesh.write(service, TrafficSplit.with_canary(0), Fence(epoch=1, sequence=1000))

    def releases(self, seen: list[ReleaseStatus]) -> DemoReleases:
        client = cast(ReleaseClient, self)
        return DemoReleases(client=client, mesh=self.mesh, service=SERVICE, on_status=seen.append)


async def test_a_release_is_followed_until_it_has_let_go() -> None:
    client = ScriptedClient(status(5), status(100, Outcome.PROMOTED))
    seen: list[ReleaseStatus] = []
    release = await client.releases(seen).run("v9", announced=Outcome.PROMOTED)
    assert release.as_announced
    assert (release.artifact_id, release.reason) == ("v9", "signalled by the demo (demo)")
    assert [current.phase for current in seen[-2:]] == [ReleasePhase.PARACHUTE, ReleasePhase.DONE]
    assert client.requests[0].plan == PLAN


async def test_a_start_waits_for_the_release_before() -> None:
    client = ScriptedClient(status(0, Outcome.REFUSED))
    client.active_for = 2
    assert (await client.releases([]).run("v9", announced=Outcome.REFUSED)).as_announced
    assert len(client.requests) == 1


async def test_a_rollback_is_signalled_at_25_percent_and_timed() -> None:
    client = ScriptedClient(status(5), status(25), status(25, Outcome.ROLLED_BACK))
    taken_back = await client.releases([]).run_and_roll_back("v9")
    assert len(client.signals) == 1
    assert taken_back.release.as_announced
    assert taken_back.milliseconds is not None
    assert (await client.mesh.read(SERVICE)).split.canary == 0


async def test_a_release_that_ends_before_25_percent_has_no_rollback_time() -> None:
    client = ScriptedClient(status(5), status(0, Outcome.ROLLED_BACK))
    taken_back = await client.releases([]).run_and_roll_back("v9")
    assert client.signals == []
    assert taken_back.milliseconds is None
