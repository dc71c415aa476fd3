"""The registry in memory: the same promises as the database, for tests and trials in one process."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from weightshift.contracts.evidence import AuditRow, Evidence
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.contracts.manifest import ArtifactRecord, ArtifactState
from weightshift.contracts.release import Admission, Admitted, Completion, ReleaseRecord
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.errors import RegistryUnreachable
from weightshift.registry import rules
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, chained
from weightshift.registry.watch import TargetBell


class MemoryRegistry:
    """A `Registry` that lives as long as the object.

    No method awaits anything, so each is one transaction. Set `available` to False to take the
    registry away: every method then raises `RegistryUnreachable`. `bell` rings on every publication.
    """

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.available = True
        self.bell = TargetBell()
        self._clock = clock
        self._artifacts: dict[tuple[str, str], ArtifactRecord] = {}
        self._targets: dict[tuple[Service, Cohort], tuple[Target, Fence]] = {}
        self._last_revision: dict[Service, int] = {}
        self._last_epoch: dict[Service, int] = {}
        self._releases: dict[str, ReleaseRecord] = {}
        self._reports: dict[tuple[Service, str], tuple[InstanceReport, datetime]] = {}
        self._chains: dict[str, list[AuditRow]] = {}

    async def register_artifact(self, record: ArtifactRecord, *, operator: str) -> ArtifactRecord:
        """Store an artifact as `pending`; a repeat is a no-op. Raises `ArtifactConflict`."""
        self._check_available()
        if stored := self._artifacts.get((record.model, record.artifact_id)):
            return rules.same_artifact(stored, record)
        pending = record.model_copy(update={"state": ArtifactState.PENDING, "created_at": self._clock()})
        self._artifacts[record.model, record.artifact_id] = pending
        self._append(rules.artifact_entry(pending, step="registered", operator=operator))
        return pending

    async def approve_artifact(self, model: str, artifact_id: str, *, operator: str) -> ArtifactRecord:
        """Move `pending` to `ready`. Raises `UnknownArtifact`, `Conflict` for a rejected one."""
        record = await self.artifact(model, artifact_id)
        if not rules.approvable(record):
            return record
        return self._set_state(record, ArtifactState.READY, step="approved", operator=operator)

    async def reject_artifact(
        self, model: str, artifact_id: str, *, operator: str, reason: str
    ) -> ArtifactRecord:
        """Move to `rejected`, for ever. Raises `UnknownArtifact`."""
        record = await self.artifact(model, artifact_id)
        if record.state is ArtifactState.REJECTED:
            return record
        return self._set_state(
            record, ArtifactState.REJECTED, step="rejected", operator=operator, reason=reason
        )

    async def artifact(self, model: str, artifact_id: str) -> ArtifactRecord:
        """Read one artifact. Raises `UnknownArtifact`."""
        self._check_available()
        record = self._artifacts.get((model, artifact_id))
        return rules.known_artifact(record, model=model, artifact_id=artifact_id)

    async def artifacts(self, model: str) -> tuple[ArtifactRecord, ...]:
        """Read a model's artifacts, newest first."""
        self._check_available()
        return tuple(record for record in reversed(self._artifacts.values()) if record.model == model)

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets."""
        self._check_available()
        return Targets(
            stable=self._target(service, Cohort.STABLE), canary=self._target(service, Cohort.CANARY)
        )

    async def publish(self, publication: Publication) -> Target:
        """Publish a target with its audit row.

        Raises `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`.
        """
        self._check_available()
        service, cohort = publication.service, publication.cohort
        if first := self._find(service.environment, publication.operation_id):
            return rules.repeated_publication(publication, first)
        artifact = rules.ready_artifact(
            self._artifacts.get((service.model, publication.artifact_id)),
            model=service.model,
            artifact_id=publication.artifact_id,
        )
        current, fence = self._targets.get((service, cohort), (None, None))
        rules.check_publication(
            publication, current=current, cohort_fence=fence, last_epoch=self._last_epoch.get(service, 0)
        )
        revision = self._last_revision.get(service, 0) + 1
        target = rules.next_target(
            publication, artifact=artifact, current=current, revision=revision, updated_at=self._clock()
        )
        self._append(rules.publication_entry(publication, target))
        self._last_revision[service] = revision
        self._targets[service, cohort] = target, publication.fence
        self.bell.ring(service)
        return target

    async def admit(self, admission: Admission) -> Admitted:
        """Take the service's release lock and allocate an epoch; a repeat returns the first result.

        Raises `ReleaseActive`, `ArtifactNotReady`, `UnknownArtifact`, `Conflict`.
        """
        targets = await self.targets(admission.request.service)
        request = admission.request
        if recorded := self._releases.get(request.release_id):
            return Admitted(epoch=rules.repeated_admission(request, recorded), targets=targets)
        rules.check_admission(
            request, active=self._active(request.service), keyed=self._keyed(request.request_key)
        )
        rules.ready_artifact(
            self._artifacts.get((request.service.model, request.artifact_id)),
            model=request.service.model,
            artifact_id=request.artifact_id,
        )
        epoch = self._last_epoch.get(request.service, 0) + 1
        self._append(rules.admission_entry(admission, epoch=epoch))
        self._last_epoch[request.service] = epoch
        self._releases[request.release_id] = ReleaseRecord(
            release_id=request.release_id,
            service=request.service,
            artifact_id=request.artifact_id,
            operator=request.operator,
            epoch=epoch,
            started_at=self._clock(),
            run_id=admission.run_id,
            request_key=request.request_key,
            request_digest=request.digest(),
        )
        return Admitted(epoch=epoch, targets=targets)

    async def complete(self, completion: Completion) -> None:
        """Record the outcome and free the lock. A repeat, or a release never admitted, is a no-op."""
        self._check_available()
        record = self._releases.get(completion.release_id)
        if record is None or record.outcome is not None:
            return
        self._append(rules.completion_entry(completion, operator=record.operator))
        self._releases[record.release_id] = record.model_copy(
            update={
                "outcome": completion.outcome,
                "reason": completion.reason,
                "finished_at": self._clock(),
            }
        )

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""
        self._check_available()
        return tuple(record for record in reversed(self._releases.values()) if record.service == service)

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

    async def record_evidence(self, evidence: Evidence) -> None:
        """Append a row to the audit chain; a repeat of the operation id is a no-op."""
        self._check_available()
        if not self._find(evidence.service.environment, evidence.operation_id):
            self._append(Entry.of_evidence(evidence))

    async def audit(self, service: Service, *, release_id: str | None = None) -> tuple[AuditRow, ...]:
        """Read the audit chain of a service, oldest first."""
        self._check_available()
        return tuple(
            row
            for row in self._chains.get(service.environment, [])
            if row.service == service and release_id in (None, row.release_id)
        )

    def _check_available(self) -> None:
        if not self.available:
            raise RegistryUnreachable

    def _target(self, service: Service, cohort: Cohort) -> Target | None:
        return self._targets.get((service, cohort), (None, None))[0]

    def _set_state(
        self, record: ArtifactRecord, state: ArtifactState, *, step: str, operator: str, reason: str = ""
    ) -> ArtifactRecord:
        changed = record.model_copy(update={"state": state})
        self._artifacts[record.model, record.artifact_id] = changed
        self._append(rules.artifact_entry(changed, step=step, operator=operator, reason=reason))
        return changed

    def _active(self, service: Service) -> ReleaseRecord | None:
        mine = (record for record in self._releases.values() if record.service == service)
        return next((record for record in mine if record.outcome is None), None)

    def _keyed(self, request_key: str | None) -> ReleaseRecord | None:
        if request_key is None:
            return None
        return next((item for item in self._releases.values() if item.request_key == request_key), None)

    def _find(self, environment: str, operation_id: str) -> AuditRow | None:
        rows = self._chains.get(environment, [])
        return next((row for row in rows if row.operation_id == operation_id), None)

    def _append(self, entry: Entry) -> None:
        chain = self._chains.setdefault(entry.service.environment, [])
        previous_hash = chain[-1].hash if chain else FIRST_PREVIOUS_HASH
        chain.append(
            chained(entry, sequence=len(chain) + 1, previous_hash=previous_hash, recorded_at=self._clock())
        )
