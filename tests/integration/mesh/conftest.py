"""An API server with one route, for each kind of route."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.mesh.route_cluster import Cluster
from tests.kubernetes_api.objects import (
    accept,
    gateway_mesh,
    http_route,
    istio_mesh,
    virtual_service,
)
from tests.kubernetes_api.server import kubernetes_api


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
