"""The activity that asks the registry whether approvals count for a release."""

from collections.abc import Callable
from datetime import UTC, datetime

from temporalio import activity

from activities.failures import application_errors
from activities.options import CHECK_APPROVALS
from weightshift.contracts.approval import Approval, ApprovalCheck, CheckedApproval, CheckedApprovals
from weightshift.errors import ApprovalInvalid
from weightshift.registry.base import Registry


def why_not(approval: Approval, check: ApprovalCheck, now: datetime | None) -> str | None:
    """Return why an approval does not count for the release that is asked about, or None. Pure.

    Without `now` it may have expired: it was accepted before.
    """
    if approval.service != check.service:
        return f"it is for {approval.service}, not for {check.service}"
    if approval.release_id != check.release_id:
        return f"it is for release {approval.release_id}, not for {check.release_id}"
    if approval.artifact_id != check.artifact_id:
        return f"it is for artifact {approval.artifact_id or 'unknown'}, not for {check.artifact_id}"
    if now is not None and (approval.expires_at is None or approval.expires_at <= now):
        return (
            f"it expired at {approval.expires_at:%Y-%m-%d %H:%M %Z}" if approval.expires_at else "it expired"
        )
    return None


class ApprovalActivities:
    """Looks approvals up; with `operator_may_approve` a release's operator may be its only approver."""

    def __init__(
        self,
        *,
        registry: Registry,
        operator_may_approve: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._registry = registry
        self._operator_may_approve = operator_may_approve
        self._clock = clock

    @activity.defn(name=CHECK_APPROVALS.name)
    async def check(self, check: ApprovalCheck) -> CheckedApprovals:
        """Return who approved. Raises `UnknownApproval`, and `ApprovalInvalid` with every problem at once."""
        with application_errors():
            return CheckedApprovals(approvals=await self.checked(check))

    async def checked(
        self, check: ApprovalCheck, *, accepted_before: bool = False
    ) -> tuple[CheckedApproval, ...]:
        """Return who approved, in the order asked; what was accepted before may have expired since.

        Raises `UnknownApproval`, `ApprovalInvalid`.
        """
        found = [await self._registry.approval(approval_id) for approval_id in check.approval_ids]
        now = None if accepted_before else self._clock()
        problems = [
            f"approval {approval.approval_id} does not count: {problem}"
            for approval in found
            if (problem := why_not(approval, check, now)) is not None
        ]
        if problems:
            raise ApprovalInvalid("; ".join(problems))
        return tuple(
            CheckedApproval(
                approval_id=approval.approval_id,
                operator=approval.operator,
                reason=approval.reason,
                operator_may_approve=self._operator_may_approve,
            )
            for approval in found
        )
