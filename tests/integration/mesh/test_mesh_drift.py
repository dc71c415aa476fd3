"""Routes that somebody else has changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mesh.route_cluster import NOTHING, QUARTER, SERVICE, Cluster, fence
from tests.kubernetes_api.objects import (
    gateway_mesh,
    istio_mesh,
)
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    MeshConfirmationTimeout,
    MeshDrift,
    RouteInvalid,
)
from weightshift.mesh.command_annotation import ANNOTATION
from weightshift.mesh.weighted_route import STICKY_CANARY


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


async def test_a_raised_fence_does_not_keep_a_rollback_out(cluster: Cluster) -> None:
    state = await cluster.mesh.write(SERVICE, QUARTER, fence(1))

    def lift(stored: dict[str, Any]) -> None:
        text = stored["metadata"]["annotations"][ANNOTATION]
        stored["metadata"]["annotations"][ANNOTATION] = text.replace('"epoch":1', '"epoch":999')

    cluster.edit(lift)
    assert "was edited" in ((await cluster.mesh.read(SERVICE)).drift or "")
    with pytest.raises(MeshDrift, match="was edited"):
        await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(2), expected=state)
    assert await cluster.mesh.write(SERVICE, NOTHING, fence(3)) == MeshState(split=NOTHING, fence=fence(3))


async def test_weights_below_zero_and_above_the_whole_are_drift_that_a_rollback_overrides(
    cluster: Cluster,
) -> None:
    if cluster.plural == "httproutes":
        with pytest.raises(ValueError, match="less than the minimum"):
            cluster.shift_by_hand(-5, 105)
        return
    cluster.shift_by_hand(-5, 105)
    assert "-5/105" in ((await cluster.mesh.read(SERVICE)).drift or "")
    state = await cluster.mesh.write(SERVICE, QUARTER, fence(1))
    cluster.shift_by_hand(105, -5)
    with pytest.raises(MeshDrift, match="105/-5"):
        await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(2), expected=state)
    assert await cluster.mesh.write(SERVICE, NOTHING, fence(3)) == MeshState(split=NOTHING, fence=fence(3))


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
        sticky = next(rule for rule in during[field] if rule.get("name") == STICKY_CANARY)
        stored["spec"][field] = [sticky, *stored["spec"][field]]

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


async def test_a_canary_that_its_owner_took_out_keeps_no_rollback_out(cluster: Cluster) -> None:
    first = await cluster.mesh.write(SERVICE, QUARTER, fence(1))

    def take_out(stored: dict[str, Any]) -> None:
        rules = stored["spec"]["http" if cluster.plural == "virtualservices" else "rules"]
        for rule in rules:
            backends = rule["route" if cluster.plural == "virtualservices" else "backendRefs"]
            backends[:] = [one for one in backends if "canary" not in json.dumps(one)]

    cluster.edit(take_out)
    with pytest.raises(MeshDrift):
        await cluster.mesh.write(SERVICE, TrafficSplit.with_canary(50), fence(2), expected=first)
    with pytest.raises(RouteInvalid, match="0 backends"):
        await cluster.mesh.check(SERVICE, [QUARTER])
    back = await cluster.mesh.write(SERVICE, NOTHING, fence(3))
    assert back == MeshState(split=NOTHING, fence=fence(3))
    await cluster.mesh.confirm(SERVICE, back)
