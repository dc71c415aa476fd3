"""What the registry tells Prometheus."""

from datetime import timedelta

import asyncpg

from weightshift.contracts.health import Incident, IncidentCount, RegistryHealth
from weightshift.contracts.identity import Cohort, Service
from weightshift.registry import fleet_rules
from weightshift.registry.postgres.database import Connection
from weightshift.registry.postgres.rows import service_of
from weightshift.registry.sql import QUERIES


async def count(connection: Connection, service: Service, incident: Incident) -> None:
    """Count one incident."""
    await connection.execute(QUERIES["count_incident"], service.model, service.environment, incident.value)


async def read(connection: Connection, *, lost_after: timedelta, mismatch_after: timedelta) -> RegistryHealth:
    """Return the counts, and every cohort beside what is desired of it."""
    services = await connection.fetch(QUERIES["select_services"])
    incidents = await connection.fetch(QUERIES["select_incidents"])
    standings = await connection.fetch(QUERIES["select_standings"])
    return RegistryHealth(
        services=tuple(service_of(record) for record in services),
        incidents=tuple(
            IncidentCount(
                service=service_of(record), incident=Incident(record["incident"]), count=record["count"]
            )
            for record in incidents
        ),
        cohorts=fleet_rules.cohort_health(
            (_standing(record) for record in standings),
            lost_after=lost_after,
            mismatch_after=mismatch_after,
        ),
    )


def _standing(record: asyncpg.Record) -> fleet_rules.Standing:
    return fleet_rules.Standing(
        service=service_of(record),
        cohort=Cohort(record["cohort"]),
        draining=record["draining"],
        age=record["age"],
        actual_revision=record["actual_revision"],
        desired_revision=record["desired_revision"],
        desired_for=record["desired_for"],
    )
