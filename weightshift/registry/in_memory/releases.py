"""The releases, one of which per service may be active: the release lock."""

from weightshift.contracts.approval import Approval, ApprovalRequest
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.release import Admission, Admitted, Completion, ReleaseRecord
from weightshift.contracts.target import Targets
from weightshift.registry import rules
from weightshift.registry.in_memory.state import MemoryState


class MemoryReleases(MemoryState):
    """Admits, completes and approves releases."""

    async def admit(self, admission: Admission) -> Admitted:
        """Take the service's release lock and allocate an epoch; a repeat returns the first result.

        Raises `ReleaseActive`, `ArtifactNotReady`, `UnknownArtifact`, `Conflict`.
        """
        self._check_available()
        request = admission.request
        if recorded := self._releases.get(request.release_id):
            return self._admitted(request.service, rules.repeated_admission(admission, recorded))
        self._check(admission, active=self._active(request.service))
        return self._admit(admission)

    async def take_over(self, holder: str, admission: Admission) -> Admitted:
        """Take the lock from a release whose workflow has ended; a repeat returns the first result.

        Raises `ReleaseActive` when another release than `holder` has the lock, and what `admit` raises.
        """
        self._check_available()
        request = admission.request
        if recorded := self._releases.get(request.release_id):
            return self._admitted(request.service, rules.repeated_admission(admission, recorded))
        active = self._active(request.service)
        rules.check_take_over(request, active=active, holder=holder)
        self._check(admission, active=None)
        if active is not None:
            self._complete(active, rules.abandonment(active, request), operator=request.operator)
        return self._admit(admission)

    async def complete(self, completion: Completion) -> None:
        """Record the outcome and free the lock. A repeat, or a release never admitted, is a no-op."""
        self._check_available()
        record = self._releases.get(completion.release_id)
        if record is not None and record.outcome is None:
            self._complete(record, completion, operator=record.operator)

    async def releases(self, service: Service) -> tuple[ReleaseRecord, ...]:
        """Read a service's releases, newest first."""
        self._check_available()
        return tuple(record for record in reversed(self._releases.values()) if record.service == service)

    async def approve_release(self, request: ApprovalRequest, *, operator: str) -> Approval:
        """Record one person's approval of a release; a repeat returns the first result."""
        self._check_available()
        if first := self._find(request.service.environment, rules.approval_operation(request)):
            return rules.repeated_approval(request, operator, first)
        approval = rules.next_approval(request, operator=operator, now=self._clock())
        self._append(rules.approval_entry(request, approval))
        self._approvals[approval.approval_id] = approval
        return approval

    async def approval(self, approval_id: str) -> Approval:
        """Read one approval. Raises `UnknownApproval`."""
        self._check_available()
        return rules.known_approval(self._approvals.get(approval_id), approval_id)

    def _check(self, admission: Admission, *, active: ReleaseRecord | None) -> None:
        request = admission.request
        rules.check_admission(request, active=active, keyed=self._keyed(request.request_key))
        self._ready(request.service.model, request.artifact_id)

    def _admit(self, admission: Admission) -> Admitted:
        request = admission.request
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
        return self._admitted(request.service, epoch)

    def _admitted(self, service: Service, epoch: int) -> Admitted:
        stable, canary = self._target(service, Cohort.STABLE), self._target(service, Cohort.CANARY)
        return Admitted(epoch=epoch, targets=Targets(stable=stable, canary=canary))

    def _complete(self, record: ReleaseRecord, completion: Completion, *, operator: str) -> None:
        self._append(rules.completion_entry(completion, operator=operator))
        self._releases[record.release_id] = record.model_copy(
            update={
                "outcome": completion.outcome,
                "reason": completion.reason,
                "finished_at": self._clock(),
            }
        )

    def _active(self, service: Service) -> ReleaseRecord | None:
        mine = (record for record in self._releases.values() if record.service == service)
        return next((record for record in mine if record.outcome is None), None)

    def _keyed(self, request_key: str | None) -> ReleaseRecord | None:
        if request_key is None:
            return None
        return next((item for item in self._releases.values() if item.request_key == request_key), None)
