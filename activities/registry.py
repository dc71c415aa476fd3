"""Activities on the registry: admission, targets, completion."""

from datetime import timedelta

from temporalio import activity

from activities.evidence import record_evidence
from activities.failures import application_errors
from activities.options import ADMIT, COMPLETE, PUBLISH
from weightshift.contracts.commands import Admittance, CompleteCommand, InstanceRef, PublishCommand
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.release import Admission, Outcome
from weightshift.contracts.target import Target
from weightshift.errors import NoCanaryCapacity
from weightshift.registry.base import Registry


class RegistryActivities:
    """Everything a release writes to the registry; each repeat returns the first result."""

    def __init__(self, *, registry: Registry, lost_after: timedelta) -> None:
        self._registry = registry
        self._lost_after = lost_after

    @activity.defn(name=ADMIT.name)
    async def admit(self, admission: Admission) -> Admittance:
        """Take the release lock. Raises `NoCanaryCapacity` before, `ReleaseActive` while it is held."""
        with application_errors():
            service = admission.request.service
            instances = await self._live_instances(service)
            for cohort in Cohort:
                if not instances[cohort]:
                    raise NoCanaryCapacity(f"no {cohort} instance of {service} reports; start one first")
            admitted = await self._registry.admit(admission)
            releases = await self._registry.releases(service)
            return Admittance(
                epoch=admitted.epoch,
                targets=admitted.targets,
                first=not any(release.outcome is Outcome.PROMOTED for release in releases),
                stable=instances[Cohort.STABLE],
                canary=instances[Cohort.CANARY],
            )

    async def _live_instances(self, service: Service) -> dict[Cohort, tuple[InstanceRef, ...]]:
        states = await self._registry.instances(service, lost_after=self._lost_after)
        return {
            cohort: tuple(
                InstanceRef(instance_id=state.report.instance_id, boot_id=state.report.boot_id)
                for state in states
                if state.report.cohort is cohort and not state.lost
            )
            for cohort in Cohort
        }

    @activity.defn(name=PUBLISH.name)
    async def publish(self, command: PublishCommand) -> Target:
        """Publish a target, fenced."""
        with application_errors():
            await record_evidence(self._registry, command.evidence)
            return await self._registry.publish(command.publication)

    @activity.defn(name=COMPLETE.name)
    async def complete(self, command: CompleteCommand) -> None:
        """Record the outcome and free the lock."""
        with application_errors():
            await record_evidence(self._registry, command.evidence)
            await self._registry.complete(command.completion)
