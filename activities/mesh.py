"""The activity that moves traffic."""

from temporalio import activity

from activities.failures import application_errors
from activities.incidents import count_drift, count_stuck_write, count_unconfirmed
from activities.options import READ_MESH, SHIFT
from weightshift.contracts.commands import MeshWrite
from weightshift.contracts.identity import Service
from weightshift.contracts.traffic import MeshState
from weightshift.errors import MeshConfirmationTimeout, MeshDrift
from weightshift.mesh.base import Mesh

_ALERT_AFTER_ATTEMPTS = 5
_CONFIRMING_ATTEMPTS = 3


class MeshActivities:
    """Writes a split and returns what the mesh reads back."""

    def __init__(self, *, mesh: Mesh) -> None:
        self._mesh = mesh

    @activity.defn(name=SHIFT.name)
    async def write(self, command: MeshWrite) -> MeshState:
        """Write a split, fenced; a repeat is a no-op. Retries are counted for the alert on them."""
        attempt = activity.info().attempt
        if attempt > _ALERT_AFTER_ATTEMPTS:
            count_stuck_write()
            activity.logger.error("mesh write %s still fails at attempt %d", command.split, attempt)
        with application_errors(insist=command.must_happen):
            return await self._write(command, attempt)

    @activity.defn(name=READ_MESH.name)
    async def read(self, service: Service) -> MeshState:
        """Return what the mesh does now; asked for by rollbacks alone, so it never gives up."""
        with application_errors(insist=True):
            return await self._mesh.read(service)

    async def _write(self, command: MeshWrite, attempt: int) -> MeshState:
        """Write and wait until the data plane shows it.

        A rollback goes on without one that does not: sealing the canary must not wait for a proxy.
        """
        try:
            state = await self._mesh.write(
                command.service, command.split, command.fence, expected=command.expected
            )
        except MeshDrift:
            count_drift()
            raise
        try:
            await self._mesh.confirm(command.service, state)
        except MeshConfirmationTimeout as error:
            may_go_unconfirmed = command.must_happen or command.may_go_unconfirmed
            if not may_go_unconfirmed or attempt < _CONFIRMING_ATTEMPTS:
                raise
            count_unconfirmed()
            activity.logger.error("a rollback goes on unconfirmed: %s", error)
            return state.model_copy(update={"confirmed": False})
        return state
