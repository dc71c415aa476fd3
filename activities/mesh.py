"""The activity that moves traffic."""

from temporalio import activity

from activities.failures import application_errors
from activities.options import READ_MESH, SHIFT
from weightshift.contracts.commands import MeshWrite
from weightshift.contracts.identity import Service
from weightshift.contracts.traffic import MeshState
from weightshift.mesh.base import Mesh

_ALERT_AFTER_ATTEMPTS = 5


class MeshActivities:
    """Writes a split and returns what the mesh reads back."""

    def __init__(self, *, mesh: Mesh) -> None:
        self._mesh = mesh

    @activity.defn(name=SHIFT.name)
    async def write(self, command: MeshWrite) -> MeshState:
        """Write a split, fenced; a repeat is a no-op. Retries are counted for the alert on them."""
        attempt = activity.info().attempt
        if attempt > _ALERT_AFTER_ATTEMPTS:
            activity.metric_meter().create_counter(
                "weightshift_mesh_write_stuck", "Attempts of a mesh write beyond the fifth"
            ).add(1)
            activity.logger.error("mesh write %s still fails at attempt %d", command.split, attempt)
        with application_errors():
            return await self._mesh.write(command.service, command.split, command.fence)

    @activity.defn(name=READ_MESH.name)
    async def read(self, service: Service) -> MeshState:
        """Return what the mesh does now."""
        with application_errors():
            return await self._mesh.read(service)
