"""The seam between releases and whatever stores the registry's rows."""

from datetime import timedelta
from typing import Protocol

from weightshift.contracts.approval import Approval, ApprovalRequest, RejectedArtifact
from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow, Evidence, Refusal
from weightshift.contracts.health import RegistryHealth
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Admitted, Completion, ReleaseRecord
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.contracts.wave import WaveGrant, WaveRequest, WaveRevocation


class Registry(Protocol):
    """Verbs of the registry. Every write is idempotent; every failure is a typed error.

    Any method raises `RegistryUnreachable` when the store does not answer in time.
    """

    async def register_artifact(self, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
        """Store an artifact as `pending`; a repeat is a no-op. Raises `ArtifactConflict`."""

    async def approve_artifact(self, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
        """Count one person's approval, which may move `pending` to `ready`.

        Raises `UnknownArtifact`, `Conflict` for a rejected one.
        """

    async def reject_artifact(
        self, model: str, artifact_id: str, *, operator: str, reason: str
    ) -> RejectedArtifact:
        """Move to `rejected`, for ever, and tell where it is in use. Raises `UnknownArtifact`."""

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets in one transaction."""

    async def publish(self, publication: Publication) -> Target:
        """Publish a target in one transaction with its audit row; a refusal is counted.

        Raises `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`, `RevisionReused`.
        """

    async def admit(self, admission: Admission) -> Admitted:
        """Take the service's release lock and allocate an epoch; a repeat returns the first result.

        Raises `ReleaseActive`, `ArtifactNotReady`, `UnknownArtifact`.
        """

    async def take_over(self, holder: str, admission: Admission) -> Admitted:
        """Take the lock from a release whose workflow has ended; a repeat returns the first result.

        Raises `ReleaseActive` when another release than `holder` has the lock, and what `admit` raises.
        """

    async def complete(self, completion: Completion) -> None:
        """Record the outcome and free the lock. A repeat is a no-op."""

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""

    async def approve_release(self, request: ApprovalRequest, *, operator: str) -> Approval:
        """Record one person's approval of a release; a repeat returns the first result."""

    async def approval(self, approval_id: str) -> Approval:
        """Read one approval. Raises `UnknownApproval`."""

    async def grant_wave(self, request: WaveRequest) -> WaveGrant:
        """Let some instances swap to a revision; a repeat returns the first result.

        Raises `StaleFence`, `OperationConflict`.
        """

    async def revoke_waves(self, revocation: WaveRevocation) -> None:
        """End every grant of a service; a repeat is a no-op. Raises `StaleFence`, `OperationConflict`."""

    async def wave_grants(self, service: Service) -> tuple[WaveGrant, ...]:
        """Read the grants that are in force now, oldest first."""

    async def report(self, report: InstanceReport) -> None:
        """Store what an instance says of itself, stamped with the store's clock."""

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        """Read a service's instances; one silent for longer than `lost_after` is `lost`."""

    async def health(self, *, lost_after: timedelta, mismatch_after: timedelta) -> RegistryHealth:
        """Read the incident counts, and compare every cohort with what is desired of it."""

    async def record_evidence(self, evidence: Evidence) -> None:
        """Append a row to the audit chain; a repeat of the operation id is a no-op."""

    async def record_refusal(self, refusal: Refusal) -> None:
        """Append a refused request to the chain that holds them."""

    async def audit(self, service: Service, *, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read all audit rows of a service, oldest first."""

    async def audit_page(self, query: AuditQuery) -> tuple[AuditRow, ...]:
        """Read the first rows that a query selects, oldest first."""

    async def audit_head(self, environment: str) -> AuditHead:
        """Read the place and the hash of a chain's newest row."""
