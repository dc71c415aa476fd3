"""The registry in PostgreSQL."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Self

from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.contracts.approval import Approval, ApprovalPolicy, ApprovalRequest, RejectedArtifact
from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow, Evidence, Refusal
from weightshift.contracts.health import Incident, RegistryHealth
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Admitted, Completion, ReleaseRecord
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.contracts.wave import WaveGrant, WaveRequest, WaveRevocation
from weightshift.errors import Conflict, RegistryUnreachable
from weightshift.registry import rules
from weightshift.registry.chain import Entry
from weightshift.registry.pages import read_all
from weightshift.registry.postgres import (
    approvals,
    artifacts,
    audit,
    health,
    instances,
    releases,
    targets,
    waves,
)
from weightshift.registry.postgres.database import Database

_STRICT = ApprovalPolicy()

_logger = logging.getLogger(__name__)


class PostgresRegistry:
    """A `Registry` on a connection pool. Every method is one transaction, bounded in time."""

    def __init__(
        self,
        *,
        database: Database,
        approval_policy: ApprovalPolicy = _STRICT,
        authoriser: ReleaseAuthoriser | None = None,
    ) -> None:
        self.database = database
        self._policy = approval_policy
        self._authoriser = authoriser

    @classmethod
    async def connect(
        cls,
        *,
        dsn: str,
        pool_size: int = 10,
        timeout: float = 5.0,
        approval_policy: ApprovalPolicy = _STRICT,
        authoriser: ReleaseAuthoriser | None = None,
    ) -> Self:
        """Connect as the application role; `timeout` (seconds) bounds each later call too.

        With an `authoriser` only signed artifacts are released, and every target is authorised.

        Raises `RegistryUnreachable`, `SchemaMismatch`.
        """
        database = await Database.open(dsn=dsn, pool_size=pool_size, timeout=timeout)
        return cls(database=database, approval_policy=approval_policy, authoriser=authoriser)

    async def close(self) -> None:
        """Close the pool."""
        await self.database.close()

    async def register_artifact(self, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
        """Store an artifact as `pending`; a repeat is a no-op. Raises `ArtifactConflict`."""
        async with self.database.transaction() as connection:
            return await artifacts.register(connection, record, operator=operator)

    async def approve_artifact(self, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
        """Count one person's approval, which may move `pending` to `ready`.

        Raises `UnknownArtifact`, `Conflict` for a rejected one.
        """
        async with self.database.transaction() as connection:
            return await artifacts.approve(
                connection, model, artifact_id, operator=operator, policy=self._policy
            )

    async def reject_artifact(
        self, model: str, artifact_id: str, *, operator: str, reason: str
    ) -> RejectedArtifact:
        """Move to `rejected`, for ever, and tell where it is in use. Raises `UnknownArtifact`."""
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
        """Read both cohorts' targets in one transaction, old authorisations renewed."""
        async with self.database.connection() as connection:
            published = await targets.read(connection, service)
        return rules.renewed(published, self._authoriser, now=datetime.now(UTC))

    async def publish(self, publication: Publication) -> Target:
        """Publish a target in one transaction with its audit row; a refusal is counted.

        Raises `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`, `RevisionReused`.
        """
        async with self._counting(publication.service), self.database.transaction() as connection:
            return await targets.publish(connection, publication, authoriser=self._authoriser)

    async def admit(self, admission: Admission) -> Admitted:
        """Take the service's release lock and allocate an epoch; a repeat returns the first result.

        Raises `ReleaseActive`, `ArtifactNotReady`, `UnknownArtifact`, `Conflict`.
        """
        async with self.database.transaction() as connection:
            return await releases.admit(connection, admission, must_be_signed=self._must_be_signed)

    async def take_over(self, holder: str, admission: Admission) -> Admitted:
        """Take the lock from a release whose workflow has ended; a repeat returns the first result.

        Raises `ReleaseActive` when another release than `holder` has the lock, and what `admit` raises.
        """
        async with self.database.transaction() as connection:
            return await releases.take_over(
                connection, holder, admission, must_be_signed=self._must_be_signed
            )

    async def complete(self, completion: Completion) -> None:
        """Record the outcome and free the lock. A repeat, or a release never admitted, is a no-op."""
        async with self.database.transaction() as connection:
            await releases.complete(connection, completion)

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""
        async with self.database.connection() as connection:
            return await releases.read_all(connection, service)

    async def approve_release(self, request: ApprovalRequest, *, operator: str) -> Approval:
        """Record one person's approval of a release; a repeat returns the first result."""
        async with self.database.transaction() as connection:
            return await approvals.record(connection, request, operator=operator)

    async def approval(self, approval_id: str) -> Approval:
        """Read one approval. Raises `UnknownApproval`."""
        async with self.database.connection() as connection:
            return await approvals.read(connection, approval_id)

    async def grant_wave(self, request: WaveRequest) -> WaveGrant:
        """Let some instances swap to a revision; a repeat returns the first result, a refusal is counted.

        Raises `StaleFence`, `OperationConflict`.
        """
        async with self._counting(request.service), self.database.transaction() as connection:
            return await waves.grant(connection, request)

    async def revoke_waves(self, revocation: WaveRevocation) -> None:
        """End every grant of a service; a repeat is a no-op. Raises `StaleFence`, `OperationConflict`."""
        async with self._counting(revocation.service), self.database.transaction() as connection:
            await waves.revoke(connection, revocation)

    async def wave_grants(self, service: Service) -> tuple[WaveGrant, ...]:
        """Read the grants that are in force now, oldest first."""
        async with self.database.connection() as connection:
            return await waves.read(connection, service)

    async def report(self, report: InstanceReport) -> None:
        """Store what an instance says of itself, stamped with the database's clock."""
        async with self.database.connection() as connection:
            await instances.write(connection, report)

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        """Read a service's instances; one silent for longer than `lost_after` is `lost`."""
        async with self.database.connection() as connection:
            return await instances.read_all(connection, service, lost_after=lost_after)

    async def health(self, *, lost_after: timedelta, mismatch_after: timedelta) -> RegistryHealth:
        """Read the incident counts, and compare every cohort with what is desired of it."""
        async with self.database.connection() as connection:
            return await health.read(connection, lost_after=lost_after, mismatch_after=mismatch_after)

    async def record_evidence(self, evidence: Evidence) -> None:
        """Append a row to the audit chain; a repeat of the operation id is a no-op."""
        async with self.database.transaction() as connection:
            await audit.append_once(connection, Entry.of_evidence(evidence))

    async def record_refusal(self, refusal: Refusal) -> None:
        """Append a refused request to the chain that holds them."""
        async with self.database.transaction() as connection:
            await audit.append(connection, Entry.of_refusal(refusal))

    async def audit(self, service: Service, *, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read all audit rows of a service, oldest first."""
        query = AuditQuery(environment=service.environment, model=service.model, release_id=release_id)
        return await read_all(self.audit_page, query)

    async def audit_page(self, query: AuditQuery) -> tuple[AuditRow, ...]:
        """Read the first rows that a query selects, oldest first."""
        async with self.database.connection() as connection:
            return await audit.read_page(connection, query)

    async def audit_head(self, environment: str) -> AuditHead:
        """Read the place and the hash of a chain's newest row."""
        async with self.database.connection() as connection:
            return await audit.read_head(connection, environment)

    @property
    def _must_be_signed(self) -> bool:
        return self._authoriser is not None

    @asynccontextmanager
    async def _counting(self, service: Service) -> AsyncIterator[None]:
        """Count a refusal that an operator should hear of, once its own transaction is over."""
        try:
            yield
        except Conflict as error:
            if incident := rules.incident_of(error):
                await self._count(service, incident)
            raise

    async def _count(self, service: Service, incident: Incident) -> None:
        try:
            async with self.database.connection() as connection:
                await health.count(connection, service, incident)
        except RegistryUnreachable:
            # The refusal itself is what the caller must hear of.
            _logger.warning("An incident was not counted: %s of %s.", incident, service)
