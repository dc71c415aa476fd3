"""Who allowed what: artifacts to be released, and releases to go on."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from weightshift.contracts.base import Duration, Identifier, Message, Name, Text
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import ArtifactRecord

ApprovalLifetime = Annotated[Duration, Field(gt=timedelta(), le=timedelta(days=30))]
"""How long after it was given an approval still counts: at most 30 days."""


class ApprovalPolicy(Message):
    """How many distinct people must approve an artifact before it is ready.

    Whoever pushed it counts as one of them, but is never enough alone unless `pusher_may_approve`.
    """

    required: int = Field(default=1, ge=1, le=20)
    pusher_may_approve: bool = False


class ArtifactUse(Message):
    """Where an artifact is in use: the revision a cohort desires it at, and the instances that serve it."""

    service: Service
    cohort: Cohort
    desired_revision: int | None = None
    instance_ids: tuple[str, ...] = ()


class RejectedArtifact(ArtifactRecord):
    """A rejected artifact, and where it is in use all the same."""

    in_use: tuple[ArtifactUse, ...] = ()


class ApprovalRequest(Message):
    """A request to approve an artifact's release. `operation_id` makes a repeat return the first approval.

    The release need not have started: its id is then what `release start` will use.
    """

    service: Service
    release_id: Identifier
    artifact_id: Name
    lifetime: ApprovalLifetime = timedelta(days=1)
    operation_id: Identifier
    reason: Text = ""


class Approval(Message):
    """The approval of one release by one authenticated person; releases name it by its id.

    Without an artifact, as given by earlier versions, it counts for no release.
    """

    approval_id: str
    service: Service
    release_id: str
    artifact_id: Name | None = None
    expires_at: datetime | None = None
    operator: str
    reason: str
    created_at: datetime


class ApprovalCheck(Message):
    """Ask whether approvals count for a release, and for whom they were given."""

    service: Service
    release_id: str
    artifact_id: Name
    approval_ids: tuple[str, ...]


class CheckedApproval(Message):
    """An approval that counts for the release that asked.

    With `operator_may_approve` the release's operator may be the only one who approves it.
    """

    approval_id: str
    operator: str
    reason: str = ""
    operator_may_approve: bool = False


class CheckedApprovals(Message):
    """The answer to an `ApprovalCheck`, in its order."""

    approvals: tuple[CheckedApproval, ...]
