"""Notices, while a stage is judged, that somebody else moves its traffic."""

import time
from collections.abc import Callable

from activities.incidents import count_drift
from weightshift.contracts.commands import Observation
from weightshift.contracts.traffic import MeshState
from weightshift.errors import RouteInvalid, WeightshiftError
from weightshift.mesh.base import Mesh
from weightshift.mesh.fencing import foreign_change


class MeshWatch:
    """Compares what the mesh does with what it was read back to do, once per interval."""

    def __init__(
        self, *, mesh: Mesh, observation: Observation, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mesh = mesh
        self._observation = observation
        self._clock = clock
        self._due = clock()

    async def problem(self, *, at_once: bool) -> str | None:
        """Return what somebody else changed, or None; a mesh that does not answer says nothing.

        Unless it is asked for `at_once`, the mesh is read once per interval.
        """
        expected = self._observation.traffic
        if expected is None or (self._clock() < self._due and not at_once):
            return None
        self._due = self._clock() + self._observation.interval.total_seconds()
        try:
            found: MeshState = await self._mesh.read(self._observation.service)
        except RouteInvalid as error:
            return str(error)
        except WeightshiftError:
            return None
        change = foreign_change(found, expected)
        if change is not None:
            count_drift()
        return change
