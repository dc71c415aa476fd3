"""Bringing the database to this build's schema, as the role that owns it.

Run as `python -m weightshift.registry.migrate` with `WEIGHTSHIFT_REGISTRY_OWNER_DSN` set.
"""

import asyncio
import logging

from weightshift.errors import InvalidInput, WeightshiftError
from weightshift.registry.postgres.database import LoneConnection, lone_connection, refuse_newer
from weightshift.registry.settings import MigrationSettings
from weightshift.registry.sql import QUERIES, migrations

STATEMENT_SECONDS = 60.0

# What the application role may do, and nothing beyond it: no DELETE, no TRUNCATE, no history rewritten.
_PRIVILEGES = {
    "schema_migration": "SELECT",
    "model_artifact": "SELECT, INSERT, UPDATE (state, approvers, signature_sha256)",
    "service_counter": "SELECT, INSERT, UPDATE (last_revision, last_epoch, wave_epoch, wave_sequence)",
    "revision_assignment": "SELECT, INSERT",
    "deployment_target": "SELECT, INSERT, UPDATE",
    "release": "SELECT, INSERT, UPDATE (outcome, reason, finished_at)",
    "release_approval": "SELECT, INSERT",
    "wave_grant": "SELECT, INSERT, UPDATE (revoked_at)",
    "incident_count": "SELECT, INSERT, UPDATE (count)",
    "instance_report": "SELECT, INSERT, UPDATE, DELETE",
    "audit": "SELECT, INSERT",
    "access_token": "SELECT, INSERT, UPDATE (revoked_at)",
}

_logger = logging.getLogger(__name__)


async def migrate(*, owner_dsn: str, application_role: str) -> int:
    """Apply the missing migrations in one transaction, grant the application role what it needs.

    Returns the schema version. Several at once wait for each other. Raises `SchemaMismatch` for a
    database ahead of this build, `InvalidInput` for an unusable role, `RegistryUnreachable`.
    """
    async with (
        lone_connection(dsn=owner_dsn, seconds=STATEMENT_SECONDS) as connection,
        connection.transaction(),
    ):
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('weightshift migrate'))")
        version = await _apply(connection)
        await _grant(connection, application_role)
    return version


async def _apply(connection: LoneConnection) -> int:
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migration (version integer PRIMARY KEY, name text NOT NULL, "
        "applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    records = await connection.fetch(QUERIES["select_applied_migrations"])
    applied = {record["version"] for record in records}
    refuse_newer(applied)
    for migration in migrations():
        if migration.version in applied:
            continue
        await connection.execute(migration.statements)
        await connection.execute(
            "INSERT INTO schema_migration (version, name) VALUES ($1, $2)", migration.version, migration.name
        )
        _logger.info("Applied migration %04d (%s).", migration.version, migration.name)
    return migrations()[-1].version


async def _grant(connection: LoneConnection, application_role: str) -> None:
    if not await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", application_role
    ):
        raise InvalidInput(
            f"Role {application_role} does not exist; create it with CREATE ROLE ... LOGIN before migrating."
        )
    # True for a superuser and for the owner itself too; neither is bound by the grants below.
    if await connection.fetchval("SELECT pg_has_role($1, current_user, 'MEMBER')", application_role):
        raise InvalidInput(
            f"Role {application_role} has the owner's rights, audit chain included; use another role."
        )
    role = await connection.fetchval("SELECT quote_ident($1)", application_role)
    for table, privileges in _PRIVILEGES.items():
        await connection.execute(f"REVOKE ALL ON {table} FROM {role}")
        await connection.execute(f"GRANT {privileges} ON {table} TO {role}")


def main() -> None:
    """Migrate the database that the environment names."""
    logging.basicConfig(level=logging.INFO)
    settings = MigrationSettings()
    try:
        dsn = settings.required_owner_dsn()
        version = asyncio.run(migrate(owner_dsn=dsn, application_role=settings.application_role))
    except WeightshiftError as error:
        _logger.critical("%s", error)
        raise SystemExit(error.exit_code) from None
    _logger.info("The registry's database is at schema version %d.", version)


if __name__ == "__main__":
    main()
