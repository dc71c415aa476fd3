"""The registry in PostgreSQL."""

from datetime import timedelta
from typing import Self

from weightshift.contracts.evidence import AuditRow, Evidence
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Admitted, Completion, ReleaseRecord
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.registry.chain import Entry
from weightshift.registry.postgres import artifacts, audit, instances, releases, targets
from weightshift.registry.postgres.database import Database


class PostgresRegistry:
    """A `Registry` on a connection pool. Every method is one transaction, bounded in time."""

    def __init__(self, *, database: Database) -> None:
        self.database = database

    @classmethod
    async def connect(cls, *, dsn: str, pool_size: int = 10, timeout: float = 5.0) -> Self:
        """Connect as the application role; `timeout` (seconds) bounds each later call too.

        Raises `RegistryUnreachable`, `SchemaMismatch`.
        """
        return cls(database=await Database.open(dsn=dsn, pool_size=pool_size, timeout=timeout))

    async def close(self) -> None:
        """Close the pool."""
        await self.database.close()

    async def register_artifact(self, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
        """Store an artifact as `pending`; a repeat is a no-op. Raises `ArtifactConflict`."""
        async with self.database.transaction() as connection:
            return await artifacts.register(connection, record, operator=operator)

    async def approve_artifact(self, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
        """Move `pending` to `ready`. Raises `UnknownArtifact`, `Conflict` for a rejected one."""
        async with self.database.transaction() as connection:
            return await artifacts.approve(connection, model, artifact_id, operator=operator)

    async def reject_artifact(
        self, model: str, artifact_id: str, *, operator: str, reason: str
    ) -> ArtifactRecord:
        """Move to `rejected`, for ever. Raises `UnknownArtifact`."""
        async with self.database.transaction() as connection:
            return await artifacts.reject(connection, model, artifact_id, operator=operator, reason=reason)

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""
        async with self.database.connection() as connection:
            return await artifacts.read(connection, model, artifact_id)

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""
        async with self.database.connection() as connection:
            return await artifacts.read_all(connection, model)

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets in one transaction."""
        async with self.database.connection() as connection:
            return await targets.read(connection, service)

    async def publish(self, publication: Publication) -> Target:
        """Publish a target in one transaction with its audit row.

        Raises `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`.
        """
        async with self.database.transaction() as connection:
            return await targets.publish(connection, publication)

    async def admit(self, admission: Admission) -> Admitted:
        """Take the service's release lock and allocate an epoch; a repeat returns the first result.

        Raises `ReleaseActive`, `ArtifactNotReady`, `UnknownArtifact`, `Conflict`.
        """
        async with self.database.transaction() as connection:
            return await releases.admit(connection, admission)

    async def complete(self, completion: Completion) -> None:
        """Record the outcome and free the lock. A repeat, or a release never admitted, is a no-op."""
        async with self.database.transaction() as connection:
            await releases.complete(connection, completion)

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""
        async with self.database.connection() as connection:
            return await releases.read_all(connection, service)

    async def report(self, report: InstanceReport) -> None:
        """Store what an instance says of itself, stamped with the database's clock."""
        async with self.database.connection() as connection:
            await instances.write(connection, report)

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        """Read a service's instances; one silent for longer than `lost_after` is `lost`."""
        async with self.database.connection() as connection:
            return await instances.read_all(connection, service, lost_after=lost_after)

    async def record_evidence(self, evidence: Evidence) -> None:
        """Append a row to the audit chain; a repeat of the operation id is a no-op."""
        async with self.database.transaction() as connection:
            await audit.append_once(connection, Entry.of_evidence(evidence))

    async def audit(self, service: Service, *, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read the audit chain of a service, oldest first."""
        async with self.database.connection() as connection:
            return await audit.read(connection, service, release_id)
