"""Rows that several topics read."""

import asyncpg

from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target


def service_of(record: asyncpg.Record) -> Service:
    """Return the service a row belongs to."""
    return Service(model=record["model_name"], environment=record["environment"])


def target_of(record: asyncpg.Record) -> Target:
    """Return the target of a row that is joined with its artifact's."""
    return Target(
        service=service_of(record),
        cohort=Cohort(record["cohort"]),
        revision=record["revision"],
        artifact_id=record["artifact_id"],
        manifest_sha256=record["manifest_sha256"],
        feature_schema=record["feature_schema"],
        serve_floor=record["serve_floor"],
        requires_grant=record["requires_grant"],
        updated_at=record["updated_at"],
        authorisation=record["authorisation"],
    )
