"""What istiod says of its proxies, over real HTTP, decides when a split counts as shown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.kubernetes_api.objects import istio_mesh, virtual_service
from tests.kubernetes_api.server import KubernetesApi, kubernetes_api
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import MeshConfirmationTimeout, MeshUnreachable
from weightshift.local.ports import HOST
from weightshift.mesh.istiod import Istiod

SERVICE = Service(model="ranker", environment="test")
FENCE = Fence(epoch=1, sequence=1)
RESOURCE = "VirtualService/weightshift/ranker"


@dataclass
class FakeIstiod:
    """One istiod: `acknowledged` by proxy, versions where it keeps track of them, otherwise nonces."""

    tracks: bool = True
    acknowledged: dict[str, str] = field(default_factory=dict)
    sent: str = ""
    token: str = ""
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if request.path == "/debug/config_distribution":
            assert request.query["resource"] == RESOURCE
            if not self.tracks:
                return web.Response(status=409, text="Pilot Version tracking is disabled.")
            rows = [{"proxy": name, "route_acked": version} for name, version in self.acknowledged.items()]
            return web.json_response(rows)
        return web.json_response(
            [
                {"proxy": name, "route_sent": self.sent, "route_acked": nonce}
                for name, nonce in self.acknowledged.items()
            ]
        )


@asynccontextmanager
async def running(istiod: FakeIstiod) -> AsyncIterator[FakeIstiod]:
    application = web.Application()
    application.router.add_get("/debug/{what}", istiod.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        istiod.url = f"http://{HOST}:{runner.addresses[0][1]}"
        yield istiod
    finally:
        await runner.cleanup()


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as server:
        server.create("virtualservices", virtual_service())
        yield server


def client(*istiods: FakeIstiod, token_file: Path | None = None) -> Istiod:
    return Istiod(urls=[one.url for one in istiods], token_file=token_file, timeout=2.0)


def version_of(stored: dict[str, Any]) -> str:
    version: str = stored["metadata"]["resourceVersion"]
    return version


async def test_a_split_shows_once_every_proxy_of_every_istiod_has_its_version(
    api: KubernetesApi, tmp_path: Path
) -> None:
    old = version_of(api.get("virtualservices", "ranker"))
    async with running(FakeIstiod()) as first, running(FakeIstiod()) as second:
        first.acknowledged = {"gateway-0.istio": old, "elsewhere.other": ""}
        second.acknowledged = {"client-0.models": old}
        mesh = istio_mesh(api, tmp_path, istiod=client(first, second))
        state = await mesh.write(SERVICE, TrafficSplit.with_canary(25), FENCE)
        confirming = asyncio.create_task(mesh.confirm(SERVICE, state))
        new = version_of(api.get("virtualservices", "ranker"))
        first.acknowledged["gateway-0.istio"] = new
        await asyncio.sleep(0.2)
        assert not confirming.done()
        second.acknowledged["client-0.models"] = new
        await confirming
        await mesh.aclose()


async def test_proxies_that_stay_behind_are_named(api: KubernetesApi, tmp_path: Path) -> None:
    old = version_of(api.get("virtualservices", "ranker"))
    async with running(FakeIstiod(acknowledged={f"proxy-{i}": old for i in range(9)})) as istiod:
        mesh = istio_mesh(api, tmp_path, istiod=client(istiod), confirm_timeout=1.0)
        state = await mesh.write(SERVICE, TrafficSplit.with_canary(25), FENCE)
        with pytest.raises(MeshConfirmationTimeout, match="9 proxies are behind, proxy-0, proxy-1, proxy-2"):
            await mesh.confirm(SERVICE, state)
        await mesh.aclose()


async def test_an_istiod_that_is_away_confirms_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    async with running(FakeIstiod()) as istiod:
        gone = client(istiod)
    mesh = istio_mesh(api, tmp_path, istiod=gone, confirm_timeout=1.0)
    state = await mesh.write(SERVICE, TrafficSplit.with_canary(25), FENCE)
    with pytest.raises(MeshConfirmationTimeout, match="WEIGHTSHIFT_MESH_ISTIOD_URLS"):
        await mesh.confirm(SERVICE, state)
    await mesh.aclose()


async def test_without_versions_unacknowledged_routes_count_as_behind() -> None:
    async with running(FakeIstiod(tracks=False, sent="nonce-2")) as istiod:
        asked = client(istiod)
        istiod.acknowledged = {"proxy-0": "nonce-2", "proxy-1": "nonce-1"}
        assert await asked.behind(resource=RESOURCE, version="7") == ("proxy-1",)
        istiod.acknowledged["proxy-1"] = "nonce-2"
        assert await asked.behind(resource=RESOURCE, version="7") == ()
        await asked.aclose()


async def test_the_token_is_read_again_for_every_question(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    async with running(FakeIstiod(token="first", acknowledged={"proxy-0": "7"})) as istiod:
        asked = client(istiod, token_file=token_file)
        for token in ("first", "second"):
            istiod.token = token
            token_file.write_text(f"{token}\n")
            assert await asked.behind(resource=RESOURCE, version="7") == ()
        token_file.write_text("stale")
        with pytest.raises(MeshUnreachable):
            await asked.behind(resource=RESOURCE, version="7")
        await asked.aclose()
