"""Waits on the fleet joined with what goes on beside or before them: a history has room for few events."""

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from temporalio import activity

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
from weightshift.contracts.target import Target
from weightshift.contracts.verdict import StageOutcome


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

    def __init__(self, *, fleet: FleetActivities, judge: Judge, publisher: Publisher) -> None:
        self._fleet = fleet
        self._judge = judge
        self._publisher = publisher

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
        """Publish, and return when every instance serves it. Raises what either raises."""
        target = await self._publisher.publish(command.publish)
        return await self._fleet.warm_up(command.wait.model_copy(update={"revision": target.revision}))
