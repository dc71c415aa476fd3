"""From settings to the mesh they name."""

from weightshift.mesh.envoy import EnvoyMesh
from weightshift.settings import MeshSettings


def open_mesh(settings: MeshSettings) -> EnvoyMesh:
    """Return the client of the mesh agent that the settings name; the caller closes it."""
    return EnvoyMesh(
        agent_urls=(settings.agent_url,),
        token=settings.agent_token,
        timeout=settings.timeout,
        confirm_timeout=settings.confirm_timeout,
    )
