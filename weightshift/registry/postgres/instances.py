"""The rows that instances write about themselves."""

from datetime import timedelta

from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.registry import fleet_rules as rules
from weightshift.registry.postgres.database import Connection
from weightshift.registry.sql import QUERIES


async def write(connection: Connection, report: InstanceReport) -> None:
    """Store a report, stamped with the database's clock."""
    await connection.execute(
        QUERIES["upsert_report"],
        report.service.model,
        report.service.environment,
        report.instance_id,
        report.model_dump_json(),
        rules.FORGET_INSTANCE_AFTER,
    )


async def read_all(
    connection: Connection, service: Service, *, lost_after: timedelta
) -> tuple[InstanceState, ...]:
    """Return a service's instances; their age is by the database's clock."""
    records = await connection.fetch(QUERIES["select_reports"], service.model, service.environment)
    aged = [
        (InstanceReport.model_validate_json(record["report"]), record["age_seconds"]) for record in records
    ]
    return rules.instance_states(aged, lost_after=lost_after)
