"""Routes that are refused before a release, the Gateway API's own word, and settings."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.integration.mesh.route_cluster import QUARTER, SERVICE, fence
from tests.kubernetes_api.objects import (
    accept,
    destination_rule,
    gateway_mesh,
    http_route,
    istio_mesh,
    kubernetes_settings,
    virtual_service,
)
from tests.kubernetes_api.server import kubernetes_api
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import (
    MeshConfirmationTimeout,
    MeshUnreachable,
    RouteInvalid,
)
from weightshift.mesh.envoy import EnvoyMesh
from weightshift.mesh.gateway import GatewayMesh
from weightshift.mesh.istio import IstioMesh
from weightshift.mesh.open_mesh import open_mesh
from weightshift.settings import MeshSettings

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
