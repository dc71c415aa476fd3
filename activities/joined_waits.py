"""Waits on the fleet joined with what goes on beside or before them: a history has room for few events."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import application_errors
from activities.fleet import FleetActivities
from activities.options import ADOPT, SWAP
from weightshift.contracts.commands import (
    Adoption,
    FleetProgress,
    JudgedProgress,
    JudgedWait,
    Observation,
    Observed,
    PublishCommand,
)
from weightshift.contracts.identity import Service
from weightshift.contracts.target import Target
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import CanaryCarriesTraffic
from weightshift.mesh.base import Mesh


class Judge(Protocol):
    """Judges a stage."""

    def observe(self, observation: Observation) -> Awaitable[Observed]:
        """Return when the observation's mode allows; a breach at once."""


class Publisher(Protocol):
    """Publishes targets."""

    def publish(self, command: PublishCommand) -> Awaitable[Target]:
        """Publish, fenced; a repeat returns the first result."""


class JoinedWaits:
    """Waits for instances while the canary is judged, or after a publication of its own."""

    def __init__(self, *, fleet: FleetActivities, judge: Judge, publisher: Publisher, mesh: Mesh) -> None:
        self._fleet = fleet
        self._judge = judge
        self._publisher = publisher
        self._mesh = mesh

    @activity.defn(name=SWAP.name)
    async def swap(self, command: JudgedWait) -> JudgedProgress:
        """Return when every instance serves the artifact, or at once on a breach, which outranks the rest.

        Raises what the wait raises.
        """
        waiting = asyncio.ensure_future(self._fleet.warm_up(command.wait))
        judging = asyncio.ensure_future(self._judge.observe(command.observation))
        try:
            await asyncio.wait((waiting, judging), return_when=asyncio.FIRST_COMPLETED)
            if judging.done() and judging.result().verdict.outcome is StageOutcome.BREACH:
                return JudgedProgress(observed=judging.result())
            return JudgedProgress(progress=await waiting)
        finally:
            waiting.cancel()
            judging.cancel()
            await asyncio.gather(waiting, judging, return_exceptions=True)

    @activity.defn(name=ADOPT.name)
    async def adopt(self, command: Adoption) -> FleetProgress:
        """Publish to an idle cohort, and return when every instance serves it.

        Raises `CanaryCarriesTraffic` with the mesh's state where it is not idle, and what publishing and
        the wait raise.
        """
        await self._require_idle_canary(command.publish.publication.service)
        target = await self._publisher.publish(command.publish)
        return await self._fleet.warm_up(command.wait.model_copy(update={"revision": target.revision}))

    async def _require_idle_canary(self, service: Service) -> None:
        """See that nobody has moved traffic to the canary past the release since it went to stable."""
        with application_errors():
            found = await self._mesh.read(service)
        if found.split.canary:
            command = f"weightshift release rollback {service.model} -e {service.environment}"
            raise ApplicationError(
                f"the canary carries {found.split.canary} % of the traffic, so nothing more is published to "
                f"it; go back to what it serves with `{command}`, or give the traffic to stable with "
                f"`{command} --break-glass`",
                found,
                type=CanaryCarriesTraffic.__name__,
                non_retryable=True,
            )
