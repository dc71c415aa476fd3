"""Who allowed what: artifacts to be released, and releases to go on."""

from datetime import datetime

from pydantic import Field

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import ArtifactRecord


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
    """A request to approve a release. `operation_id` makes a repeat return the first approval."""

    service: Service
    release_id: str = Field(min_length=1, max_length=200)
    operation_id: str = Field(min_length=1, max_length=200)
    reason: str = Field(default="", max_length=1_000)


class Approval(Message):
    """The approval of one release by one authenticated person; releases name it by its id."""

    approval_id: str
    service: Service
    release_id: str
    operator: str
    reason: str
    created_at: datetime
