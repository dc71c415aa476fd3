"""The seam between releases and whatever stores the registry's rows."""

from datetime import timedelta
from typing import Protocol

from weightshift.contracts.evidence import AuditRow, Evidence
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Admitted, Completion, ReleaseRecord
from weightshift.contracts.target import Publication, Target, Targets


class Registry(Protocol):
    """Verbs of the registry. Every write is idempotent; every failure is a typed error.

    Any method raises `RegistryUnreachable` when the store does not answer in time.
    """

    async def register_artifact(self, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
        """Store an artifact as `pending`; a repeat is a no-op. Raises `ArtifactConflict`."""

    async def approve_artifact(self, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
        """Move `pending` to `ready`. Raises `UnknownArtifact`, `Conflict` for a rejected one."""

    async def reject_artifact(
        self, model: str, artifact_id: str, *, operator: str, reason: str
    ) -> ArtifactRecord:
        """Move to `rejected`, for ever. Raises `UnknownArtifact`."""

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets in one transaction."""

    async def publish(self, publication: Publication) -> Target:
        """Publish a target in one transaction with its audit row.

        Raises `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`.
        """

    async def admit(self, admission: Admission) -> Admitted:
        """Take the service's release lock and allocate an epoch; a repeat returns the first result.

        Raises `ReleaseActive`, `ArtifactNotReady`, `UnknownArtifact`.
        """

    async def complete(self, completion: Completion) -> None:
        """Record the outcome and free the lock. A repeat is a no-op."""

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""

    async def report(self, report: InstanceReport) -> None:
        """Store what an instance says of itself, stamped with the store's clock."""

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        """Read a service's instances; one silent for longer than `lost_after` is `lost`."""

    async def record_evidence(self, evidence: Evidence) -> None:
        """Append a row to the audit chain; a repeat of the operation id is a no-op."""

    async def audit(self, service: Service, *, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read the audit chain of a service, oldest first."""
