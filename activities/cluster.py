"""Activities on the cluster: the canary's pods for the length of a release."""

import asyncio
from datetime import timedelta

from temporalio import activity

from activities.admission_rules import require_alike
from activities.failures import application_errors
from activities.fleet import live_instances
from activities.options import SCALE_DOWN, SCALE_UP
from weightshift.cluster.base import Cluster
from weightshift.contracts.commands import ScaleDown, ScaledUp, ScaleUp
from weightshift.contracts.identity import Cohort
from weightshift.registry.base import Registry


class ClusterActivities:
    """Asks for pods and waits until their instances report; lets them go again."""

    def __init__(
        self, *, cluster: Cluster, registry: Registry, lost_after: timedelta, poll: timedelta
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._lost_after = lost_after
        self._poll = poll.total_seconds()

    @activity.defn(name=SCALE_UP.name)
    async def scale_up(self, command: ScaleUp) -> ScaledUp:
        """Hold the canary's pods, and return its instances once as many of them report.

        Raises `CanaryDiffers` where stable has other ones and that matters.
        """
        with application_errors():
            await self._cluster.hold(command.service, Cohort.CANARY, command.replicas, command.fence)
        while True:
            with application_errors():
                states = await self._registry.instances(command.service, lost_after=self._lost_after)
                instances = live_instances(states, Cohort.CANARY)
                pool = await self._cluster.pool(command.service, Cohort.CANARY)
            activity.heartbeat(f"waiting for {command.replicas} canary instances: {len(instances)} report")
            if len(instances) >= command.replicas and pool is not None and pool.ready >= command.replicas:
                with application_errors():
                    if command.like_stable:
                        require_alike(states)
                return ScaledUp(instances=instances, pool=pool)
            await asyncio.sleep(self._poll)

    @activity.defn(name=SCALE_DOWN.name)
    async def scale_down(self, command: ScaleDown) -> None:
        """Let the canary's pods go; those that were there before the release last."""
        with application_errors():
            await self._cluster.let_go(command.service, Cohort.CANARY, command.fence, keep=command.keep)
