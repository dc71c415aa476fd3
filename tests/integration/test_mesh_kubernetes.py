"""The Kubernetes adapters over real HTTP, where the API server, its users and its network misbehave."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.kubernetes_api.objects import (
    accept,
    destination_rule,
    gateway_mesh,
    http_route,
    istio_mesh,
    kubernetes_settings,
    virtual_service,
)
from tests.kubernetes_api.server import Fault, KubernetesApi, kubernetes_api
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    MeshConfirmationTimeout,
    MeshDrift,
    MeshUnreachable,
    RouteInvalid,
    StaleFence,
    Unauthorised,
)
from weightshift.mesh.command_annotation import ANNOTATION, annotation_value
from weightshift.mesh.envoy import EnvoyMesh
from weightshift.mesh.gateway import GatewayMesh
from weightshift.mesh.istio import IstioMesh
from weightshift.mesh.open_mesh import open_mesh
from weightshift.settings import MeshSettings

SERVICE = Service(model="ranker", environment="test")
QUARTER = TrafficSplit.with_canary(25)
NOTHING = TrafficSplit.with_canary(0)


@dataclass
class Cluster:
    """One API server with one route, and the adapter that writes to it."""

    api: KubernetesApi
    mesh: IstioMesh | GatewayMesh
    impatient: IstioMesh | GatewayMesh
    plural: str

    def edit(self, change: Any) -> None:
        self.api.edit(self.plural, "ranker", change)

    def stored(self) -> dict[str, Any]:
        return self.api.get(self.plural, "ranker")

    def owned(self, stored: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the two weighted backends of the owned rule."""
        rules = stored["spec"]["http" if self.plural == "virtualservices" else "rules"]
        backends: list[dict[str, Any]] = rules[1]["route" if "route" in rules[1] else "backendRefs"]
        return backends

    def shift_by_hand(self, *weights: int) -> None:
        def change(stored: dict[str, Any]) -> None:
            for backend, weight in zip(self.owned(stored), weights, strict=True):
                backend["weight"] = weight

        self.edit(change)


@pytest.fixture(params=["virtualservices", "httproutes"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with kubernetes_api() as api:
        api.controller = accept
        istio = request.param == "virtualservices"
        api.create(request.param, virtual_service() if istio else http_route())
        adapter = istio_mesh if istio else gateway_mesh
        mesh = adapter(api, tmp_path, timeout=4.0)
        impatient = adapter(api, tmp_path, timeout=0.3)
        yield Cluster(api, mesh, impatient, request.param)
        await mesh.aclose()
        await impatient.aclose()


def fence(sequence: int, *, epoch: int = 1) -> Fence:
    return Fence(epoch=epoch, sequence=sequence)


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


# --- drift --------------------------------------------------------------------------------------


async def test_foreign_weights_stop_a_promotion_and_not_a_rollback(cluster: Cluster) -> None:
    first = await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(5), fence(1))
    cluster.shift_by_hand(10, 90)
    found = await cluster.mesh.read(SERVICE)
    assert (found.split, found.fence) == (TrafficSplit.with_canary(90), fence(1))
    assert "10/90" in (found.drift or "")
    with pytest.raises(MeshDrift, match="10/90"):
        await cluster.mesh.write(SERVICE, QUARTER, fence(2), expected=first)
    assert await cluster.mesh.write(SERVICE, NOTHING, fence(3)) == MeshState(split=NOTHING, fence=fence(3))


async def test_what_somebody_else_changed_is_not_confirmed(cluster: Cluster, tmp_path: Path) -> None:
    state = await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    cluster.shift_by_hand(10, 90)
    adapter = istio_mesh if cluster.plural == "virtualservices" else gateway_mesh
    mesh = adapter(cluster.api, tmp_path, confirm_timeout=1.0)
    with pytest.raises(MeshConfirmationTimeout, match="10/90"):
        await mesh.confirm(SERVICE, state)
    await mesh.aclose()


async def test_a_lowered_fence_is_noticed(cluster: Cluster) -> None:
    first = await cluster.mesh.write(SERVICE, QUARTER, fence(7))

    def lower(stored: dict[str, Any]) -> None:
        written = json.loads(stored["metadata"]["annotations"][ANNOTATION])
        written["fence"] = {"epoch": 0, "sequence": 0}
        stored["metadata"]["annotations"][ANNOTATION] = json.dumps(written)

    cluster.edit(lower)
    assert "was edited" in ((await cluster.mesh.read(SERVICE)).drift or "")
    with pytest.raises(MeshDrift, match="was edited"):
        await cluster.mesh.write(SERVICE, NOTHING, fence(8), expected=first)


async def test_a_route_that_was_replaced_is_noticed(cluster: Cluster) -> None:
    first = await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    cluster.edit(lambda stored: stored["metadata"]["annotations"].pop(ANNOTATION))
    with pytest.raises(MeshDrift, match="without a fence"):
        await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(2), expected=first)


async def test_what_a_gitops_tool_puts_back_is_cleaned_up_at_the_end(cluster: Cluster) -> None:
    await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(25, sticky=True), fence(1))
    during = cluster.stored()["spec"]
    await cluster.mesh.write(SERVICE, NOTHING, fence(2))
    clean = cluster.stored()["spec"]

    def put_back(stored: dict[str, Any]) -> None:
        field = "http" if "http" in during else "rules"
        stored["spec"][field] = [during[field][1], *stored["spec"][field]]

    cluster.edit(put_back)
    assert (await cluster.mesh.read(SERVICE)).drift is not None
    await cluster.mesh.finalise(SERVICE, fence(3))
    assert cluster.stored()["spec"] == clean
    assert await cluster.mesh.read(SERVICE) == MeshState(split=NOTHING, fence=fence(3))


async def test_finalising_in_the_middle_of_a_split_changes_nothing(cluster: Cluster) -> None:
    await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(25, sticky=True), fence(1))
    before = cluster.stored()
    await cluster.mesh.finalise(SERVICE, fence(2))
    assert cluster.stored() == before


# --- checks before a release --------------------------------------------------------------------


async def test_subsets_are_checked_before_a_release(tmp_path: Path) -> None:
    async with kubernetes_api() as api:
        api.create("virtualservices", virtual_service())
        api.create("destinationrules", destination_rule("stable"))
        api.allow("get", "destinationrules", "ranker")
        mesh = istio_mesh(api, tmp_path, destination_rule="$model")
        with pytest.raises(RouteInvalid, match="does not have subset canary"):
            await mesh.check(SERVICE, [QUARTER])
        api.create("destinationrules", destination_rule("stable", "canary"))
        await mesh.check(SERVICE, [QUARTER])
        api.delete("destinationrules", "ranker")
        with pytest.raises(RouteInvalid, match="destinationrules/ranker"):
            await mesh.check(SERVICE, [QUARTER])
        await mesh.aclose()


async def test_a_control_arm_that_does_not_fit_is_found_before_a_release(tmp_path: Path) -> None:
    async with kubernetes_api() as api:
        api.create("virtualservices", virtual_service(mirror={"host": "shadow"}))
        mesh = istio_mesh(api, tmp_path)
        await mesh.check(SERVICE, [QUARTER, TrafficSplit.with_canary(100)])
        with pytest.raises(RouteInvalid, match="`mirror` of its own"):
            await mesh.check(SERVICE, [TrafficSplit.with_canary(100, mirrored=5)])
        assert api.patches() == 0
        await mesh.aclose()


# --- the Gateway API's own word -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        (None, "no gateway has taken the HTTPRoute up"),
        ({"observedGeneration": 1, "status": "True"}, "has not seen generation 2"),
        ({"observedGeneration": 9, "status": "False", "reason": "BackendNotFound"}, "BackendNotFound"),
    ],
)
async def test_a_route_no_gateway_has_accepted_is_not_confirmed(
    tmp_path: Path, conditions: dict[str, Any] | None, told: str
) -> None:
    def controller(plural: str, stored: dict[str, Any]) -> None:
        if conditions is not None:
            both = [{"type": kind, **conditions} for kind in ("Accepted", "ResolvedRefs")]
            stored["status"] = {"parents": [{"parentRef": {"name": "public"}, "conditions": both}]}

    async with kubernetes_api() as api:
        api.create("httproutes", http_route())
        api.controller = controller
        mesh = gateway_mesh(api, tmp_path, confirm_timeout=1.0)
        state = await mesh.write(SERVICE, QUARTER, fence(1))
        with pytest.raises(MeshConfirmationTimeout, match=told):
            await mesh.confirm(SERVICE, state)
        await mesh.aclose()


async def test_a_gateway_may_take_a_moment(tmp_path: Path) -> None:
    async with kubernetes_api() as api:
        api.create("httproutes", http_route())
        mesh = gateway_mesh(api, tmp_path)
        state = await mesh.write(SERVICE, QUARTER, fence(1))
        confirming = asyncio.create_task(mesh.confirm(SERVICE, state))
        await asyncio.sleep(0.1)
        assert not confirming.done()
        api.edit("httproutes", "ranker", lambda stored: accept("httproutes", stored))
        await confirming
        await mesh.aclose()


# --- settings -----------------------------------------------------------------------------------


async def test_settings_name_the_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_api() as api:
        api.controller = accept
        api.create("virtualservices", virtual_service())
        api.create("httproutes", http_route())
        for plural in ("virtualservices", "httproutes"):
            api.allow("get patch", plural, "ranker")
        kubeconfig = kubernetes_settings(api, tmp_path).kubeconfig
        monkeypatch.setenv("WEIGHTSHIFT_KUBERNETES_KUBECONFIG", str(kubeconfig))
        istio = MeshSettings(adapter="istio", route="predictions")
        gateway = MeshSettings(adapter="gateway", stable="ranker-stable", canary="ranker-canary")
        for settings, kind in ((istio, IstioMesh), (gateway, GatewayMesh)):
            mesh = open_mesh(settings)
            assert isinstance(mesh, kind)
            state = await mesh.write(SERVICE, QUARTER, fence(1))
            await mesh.confirm(SERVICE, state)
            await mesh.aclose()
    envoy = open_mesh(MeshSettings(agent_token=SecretStr("a-token-of-the-agent")))
    assert isinstance(envoy, EnvoyMesh)
    await envoy.aclose()


async def test_outside_of_a_cluster_a_kubeconfig_is_asked_for() -> None:
    mesh = open_mesh(MeshSettings(adapter="istio"))
    with pytest.raises(MeshUnreachable, match="WEIGHTSHIFT_KUBERNETES_KUBECONFIG"):
        await mesh.read(SERVICE)
    await mesh.aclose()


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
