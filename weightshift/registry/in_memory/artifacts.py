"""The artifacts."""

from weightshift.contracts.approval import ArtifactUse, RejectedArtifact
from weightshift.contracts.health import Incident
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.registry import artifact_rules as rules
from weightshift.registry.fleet_rules import FORGET_INSTANCE_AFTER
from weightshift.registry.in_memory.state import MemoryState


class MemoryArtifacts(MemoryState):
    """Registers artifacts and decides about them."""

    async def register_artifact(self, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
        """Store an artifact as `pending`; a repeat is a no-op. Raises `ArtifactConflict`."""
        self._check_available()
        if stored := self._artifacts.get((record.model, record.artifact_id)):
            return self._register_again(stored, record, operator=operator)
        pending = record.model_copy(
            update={
                "state": ArtifactState.PENDING,
                "created_at": self._clock(),
                "pushed_by": operator,
                "approvers": (),
            }
        )
        self._artifacts[record.model, record.artifact_id] = pending
        self._append(rules.registration_entry(pending))
        return pending

    async def approve_artifact(self, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
        """Count one person's approval, which may move `pending` to `ready`.

        Raises `UnknownArtifact`, `Conflict` for a rejected one.
        """
        record = await self.artifact(model, artifact_id)
        approved = rules.approved(record, operator=operator, policy=self._policy)
        if approved != record:
            self._artifacts[model, artifact_id] = approved
            self._append(rules.approval_entry(approved, operator=operator))
        return approved

    async def reject_artifact(
        self, model: str, artifact_id: str, *, operator: str, reason: str
    ) -> RejectedArtifact:
        """Move to `rejected`, for ever, and tell where it is in use. Raises `UnknownArtifact`."""
        record = await self.artifact(model, artifact_id)
        rejected = rules.rejected(record, self._uses(model, artifact_id))
        if record.state is not ArtifactState.REJECTED:
            self._artifacts[model, artifact_id] = record.model_copy(update={"state": ArtifactState.REJECTED})
            self._append(rules.rejection_entry(rejected, operator=operator, reason=reason))
            for service in {use.service for use in rejected.in_use}:
                self._incidents[service, Incident.REJECTED_IN_USE] += 1
        return rejected

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""
        self._check_available()
        record = self._artifacts.get((model, artifact_id))
        return rules.known_artifact(record, model=model, artifact_id=artifact_id)

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""
        self._check_available()
        return tuple(record for record in reversed(self._artifacts.values()) if record.model == model)

    def _register_again(
        self, stored: ArtifactRecord, record: ArtifactRecord, *, operator: str
    ) -> ArtifactRecord:
        same = rules.same_artifact(stored, record)
        if same != stored:
            self._artifacts[same.model, same.artifact_id] = same
            previous = stored.signature_sha256
            self._append(rules.signature_entry(same, previous=previous, operator=operator))
        return same

    def _uses(self, model: str, artifact_id: str) -> tuple[ArtifactUse, ...]:
        targets = (target for target, _ in self._targets.values() if target.service.model == model)
        oldest = self._clock() - FORGET_INSTANCE_AFTER
        reports = (
            report
            for report, reported_at in self._reports.values()
            if report.service.model == model and reported_at > oldest
        )
        return rules.artifact_uses(artifact_id, targets, reports)
