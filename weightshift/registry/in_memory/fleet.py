"""What instances report, and the registry's own health."""

from datetime import datetime, timedelta

from weightshift.contracts.health import IncidentCount, RegistryHealth
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.registry import fleet_rules as rules
from weightshift.registry.in_memory.state import MemoryState


class MemoryFleet(MemoryState):
    """Keeps reports and compares them with what is desired."""

    async def report(self, report: InstanceReport) -> None:
        """Store what an instance says of itself, stamped with the clock."""
        self._check_available()
        self._reports[report.service, report.instance_id] = report, self._clock()

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        """Read a service's instances; one silent for longer than `lost_after` is `lost`."""
        self._check_available()
        now = self._clock()
        mine = sorted(
            (instance_id, (report, (now - reported_at).total_seconds()))
            for (owner, instance_id), (report, reported_at) in self._reports.items()
            if owner == service
        )
        return rules.instance_states((aged for _, aged in mine), lost_after=lost_after)

    async def health(self, *, lost_after: timedelta, mismatch_after: timedelta) -> RegistryHealth:
        """Read the incident counts, and compare every cohort with what is desired of it."""
        self._check_available()
        standings = [
            rules.standing(
                report,
                age=self._age(reported_at),
                desired_revision=target.revision if target else None,
                desired_for=self._age(target.updated_at) if target and target.updated_at else None,
            )
            for report, reported_at in self._reports.values()
            for target in (self._target(report.service, report.cohort),)
        ]
        services = {
            *self._last_revision,
            *self._last_epoch,
            *(service for service, _ in self._reports),
            *(service for service, _ in self._incidents),
        }
        return RegistryHealth(
            services=tuple(sorted(services, key=str)),
            incidents=tuple(
                IncidentCount(service=service, incident=incident, count=count)
                for (service, incident), count in sorted(self._incidents.items(), key=str)
            ),
            cohorts=rules.cohort_health(standings, lost_after=lost_after, mismatch_after=mismatch_after),
        )

    def _age(self, moment: datetime) -> float:
        return (self._clock() - moment).total_seconds()
