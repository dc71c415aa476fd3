"""From settings to the mesh they name."""

from typing import Protocol

from weightshift.mesh.base import Mesh
from weightshift.mesh.envoy import EnvoyMesh
from weightshift.settings import KubernetesSettings, MeshSettings


class OpenMesh(Mesh, Protocol):
    """A mesh with connections, which the caller closes."""

    async def aclose(self) -> None:
        """Close the connections."""


def open_mesh(settings: MeshSettings) -> OpenMesh:
    """Return the adapter that the settings name; the caller closes it."""
    if settings.adapter == "envoy":
        return EnvoyMesh(
            agent_urls=[url.strip() for url in settings.agent_url.split(",") if url.strip()],
            token=settings.agent_token,
            timeout=settings.timeout,
            confirm_timeout=settings.confirm_timeout,
        )
    return _open_kubernetes(settings)


def _open_kubernetes(settings: MeshSettings) -> OpenMesh:
    # The Kubernetes client is an extra, and takes half a second to import.
    from weightshift.cluster.client import KubernetesClient  # noqa: PLC0415
    from weightshift.mesh.gateway import GatewayMesh  # noqa: PLC0415
    from weightshift.mesh.istio import IstioMesh  # noqa: PLC0415
    from weightshift.mesh.istiod import Istiod  # noqa: PLC0415

    client = KubernetesClient(settings=KubernetesSettings(timeout=settings.timeout))
    if settings.adapter == "gateway":
        return GatewayMesh(client=client, settings=settings)
    urls = tuple(filter(None, settings.istiod_urls.split(",")))
    token_file = settings.istiod_token_file
    istiod = Istiod(urls=urls, token_file=token_file, timeout=settings.timeout) if urls else None
    return IstioMesh(client=client, settings=settings, istiod=istiod)
