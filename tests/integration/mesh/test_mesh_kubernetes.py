"""The Kubernetes adapters over real HTTP, where the API server, its users and its network misbehave."""

import asyncio
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mesh.route_cluster import NOTHING, QUARTER, SERVICE, Cluster, fence
from tests.kubernetes_api.objects import (
    accept,
    istio_mesh,
)
from tests.kubernetes_api.server import Fault, kubernetes_api
from weightshift.contracts.identity import Fence
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    MeshDrift,
    MeshUnreachable,
    RouteInvalid,
    StaleFence,
    Unauthorised,
)
from weightshift.mesh.command_annotation import ANNOTATION, annotation_value

# --- conflicts ----------------------------------------------------------------------------------


async def test_an_edit_between_read_and_write_is_kept_and_the_write_made_again(cluster: Cluster) -> None:
    cluster.api.meanwhile = lambda: cluster.edit(
        lambda stored: stored["metadata"].setdefault("labels", {}).update(team="ranking")
    )
    state = await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    assert state == await cluster.mesh.read(SERVICE)
    assert cluster.stored()["metadata"]["labels"] == {"team": "ranking"}
    assert cluster.api.patches() == 2


async def test_a_newer_command_between_read_and_write_is_not_overwritten(cluster: Cluster) -> None:
    def newer(stored: dict[str, Any]) -> None:
        for backend, weight in zip(cluster.owned(stored), (50, 50), strict=True):
            backend["weight"] = weight
        value = annotation_value(SERVICE, TrafficSplit.with_canary(50), fence(9), 100)
        stored["metadata"].setdefault("annotations", {})[ANNOTATION] = value

    cluster.api.meanwhile = lambda: cluster.edit(newer)
    with pytest.raises(StaleFence, match=r"1\.9"):
        await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    assert (await cluster.mesh.read(SERVICE)).split == TrafficSplit.with_canary(50)


async def test_a_foreign_edit_between_read_and_write_is_drift(cluster: Cluster) -> None:
    first = await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(5), fence(1))
    cluster.api.meanwhile = lambda: cluster.shift_by_hand(40, 60)
    with pytest.raises(MeshDrift, match="40/60"):
        await cluster.mesh.write(SERVICE, QUARTER, fence(2), expected=first)


# --- answers that fail --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [Fault("PATCH", status=500, applied=True), Fault("PATCH", cut=True, applied=True)],
    ids=["500", "cut"],
)
async def test_a_write_whose_answer_was_lost_is_read_back_and_not_sent_again(
    cluster: Cluster, fault: Fault
) -> None:
    first = await cluster.mesh.read(SERVICE)
    cluster.api.faults.append(fault)
    state = await cluster.mesh.write(SERVICE, QUARTER, fence(1), expected=first)
    assert state == MeshState(split=QUARTER, fence=fence(1))
    assert cluster.api.patches() == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PATCH", status=500),
        Fault("PATCH", cut=True),
        Fault("GET", status=503),
        Fault("GET", cut=True),
        Fault("PATCH", status=409),
    ],
    ids=["500", "cut", "unavailable", "cut read", "conflict"],
)
async def test_a_call_that_did_nothing_is_made_again(cluster: Cluster, fault: Fault) -> None:
    cluster.api.faults += [fault, fault]
    assert (await cluster.mesh.write(SERVICE, QUARTER, fence(1))).split == QUARTER
    assert (await cluster.mesh.read(SERVICE)).split == QUARTER


async def test_the_server_is_left_alone_for_as_long_as_it_asks(cluster: Cluster) -> None:
    cluster.api.faults.append(Fault("PATCH", status=429, retry_after="1"))
    began = time.monotonic()
    await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    assert time.monotonic() - began >= 1.0
    assert cluster.api.patches() == 2


async def test_a_server_that_asks_for_no_time_at_all_is_not_flooded(cluster: Cluster) -> None:
    cluster.api.faults += [Fault("PATCH", status=429, retry_after="0")] * 50
    with pytest.raises(MeshUnreachable):
        await cluster.impatient.write(SERVICE, QUARTER, fence(1))
    assert cluster.api.patches() <= 8


async def test_a_server_that_asks_for_more_time_than_there_is_is_unreachable(cluster: Cluster) -> None:
    cluster.api.faults.append(Fault("PATCH", status=429, retry_after="60"))
    with pytest.raises(MeshUnreachable, match=r"within 0\.3 s"):
        await cluster.impatient.write(SERVICE, QUARTER, fence(1))


async def test_a_slow_answer_ends_in_time_and_its_effect_is_found_later(cluster: Cluster) -> None:
    cluster.api.faults.append(Fault("PATCH", delay=0.8))
    with pytest.raises(MeshUnreachable):
        await cluster.impatient.write(SERVICE, QUARTER, fence(1))
    assert (await cluster.mesh.write(SERVICE, NOTHING, fence(2))).split == NOTHING
    # The delayed patch reaches the server after the newer command: its version is stale by then.
    await asyncio.sleep(1.0)
    assert (await cluster.mesh.read(SERVICE)) == MeshState(split=NOTHING, fence=fence(2))


@pytest.mark.parametrize(
    ("fault", "error", "told"),
    [
        (Fault("PATCH", status=403), Unauthorised, "grant get and patch"),
        (Fault("PATCH", status=422), RouteInvalid, "not changed"),
        (Fault("GET", status=401), Unauthorised, "grant get"),
    ],
    ids=["forbidden", "invalid", "unauthorised"],
)
async def test_a_refusal_is_typed_and_not_repeated(
    cluster: Cluster, fault: Fault, error: type[Exception], told: str
) -> None:
    cluster.api.faults.append(fault)
    with pytest.raises(error, match=told):
        await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    assert cluster.api.patches() <= 1


async def test_a_missing_route_is_named(cluster: Cluster) -> None:
    cluster.api.delete(cluster.plural, "ranker")
    for call in (cluster.mesh.read(SERVICE), cluster.mesh.write(SERVICE, QUARTER, fence(1))):
        with pytest.raises(RouteInvalid, match=f"there is no .*{cluster.plural}/ranker"):
            await call


async def test_an_api_that_is_away_is_unreachable(tmp_path: Path) -> None:
    async with kubernetes_api() as api:
        mesh = istio_mesh(api, tmp_path, timeout=0.3)
    with pytest.raises(MeshUnreachable, match="did not serve"):
        await mesh.read(SERVICE)
    await mesh.aclose()


async def test_the_named_object_is_got_and_patched_and_nothing_else(cluster: Cluster) -> None:
    state = await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    await cluster.mesh.confirm(SERVICE, state)
    await cluster.mesh.check(SERVICE, [NOTHING])
    await cluster.mesh.finalise(SERVICE, fence(2))
    assert {method for method, _ in cluster.api.requests} == {"GET", "PATCH"}
    assert {path.split("/")[-2:] == [cluster.plural, "ranker"] for _, path in cluster.api.requests} == {True}


# --- everything at once -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_fails_the_newest_command_wins_and_no_fence_ever_falls(
    cluster: Cluster, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    for _ in range(12):
        method, status = chance.choice(["GET", "PATCH"]), chance.choice([0, 409, 500])
        applied = status != 409 and chance.random() < 0.5
        cluster.api.faults.append(Fault(method, status=status, cut=not status, applied=applied))
    seen: list[Fence] = []

    def remember(plural: str, stored: dict[str, Any]) -> None:
        accept(plural, stored)
        seen.append(Fence.model_validate(json.loads(stored["metadata"]["annotations"][ANNOTATION])["fence"]))

    cluster.api.controller = remember
    commands = [(TrafficSplit.with_canary(5 * number), fence(number)) for number in range(1, 13)]
    chance.shuffle(commands)
    outcomes = await asyncio.gather(
        *(cluster.mesh.write(SERVICE, *command) for command in commands), return_exceptions=True
    )
    newest = outcomes[commands.index((TrafficSplit.with_canary(60), fence(12)))]
    assert newest == MeshState(split=TrafficSplit.with_canary(60), fence=fence(12))
    assert await cluster.mesh.read(SERVICE) == newest
    assert all(isinstance(outcome, MeshState | StaleFence) for outcome in outcomes)
    assert all(not after < before for before, after in itertools.pairwise(seen))
