"""A release: the request, the signals it answers, and what it says of itself."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, field_validator

from weightshift.contracts.base import Message, Name, Text, clean_text
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.plan import MAX_APPROVALS, Plan
from weightshift.contracts.target import Targets
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import StageVerdict

ApprovalId = Annotated[str, Field(min_length=1, max_length=200)]
"""The id under which the registry keeps one person's approval."""


class ReleaseRequest(Message):
    """The input of the release workflow: ids and intent, never weights.

    `approvals` were given before the start, for this `release_id`; others follow with the update `approve`.
    `allow_schema_change` says that callers are ready for another feature schema than stable serves.
    """

    release_id: str
    service: Service
    artifact_id: Name
    plan: Plan = Plan()
    operator: Text = Field(min_length=1, max_length=200)
    reason: Text = ""
    request_key: str | None = Field(default=None, min_length=1, max_length=200)
    approvals: tuple[ApprovalId, ...] = Field(default=(), max_length=MAX_APPROVALS)
    allow_schema_change: bool = False

    def digest(self) -> str:
        """Return a SHA-256 over what is asked for: neither the `release_id` of one try nor who allowed it."""
        document = self.model_dump(mode="json", exclude={"release_id", "approvals"}, exclude_defaults=True)
        return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


class RollbackRequest(BaseModel):
    """The payload of the `rollback` signal and update.

    Every field is optional and unknown ones are ignored: a signal typed by hand must always count.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    operator: str = "unknown"
    reason: str = "rollback requested"

    @field_validator("operator", "reason", mode="before")
    @classmethod
    def _cleaned(cls, value: object) -> str:
        """Take what was meant, whatever was typed: a rollback is never refused for its wording."""
        return clean_text(value if isinstance(value, str) else repr(value))

    @classmethod
    def from_payloads(cls, payloads: Sequence[bytes]) -> "RollbackRequest":
        """Read what a signal carried: nothing, an object, a bare sentence, or bytes nobody understands."""
        try:
            content = json.loads(payloads[0]) if payloads else {}
        except (ValueError, RecursionError):
            content = {}
        if isinstance(content, str):
            content = {"reason": content}
        return cls.model_validate(content if isinstance(content, dict) else {})


class Intervention(BaseModel):
    """Who pauses, resumes or promotes a release, and why; both optional, for what was typed by hand."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    operator: Text = ""
    reason: Text = ""


class GivenApproval(Message):
    """The payload of the `approve` update: an approval that the registry issued."""

    approval_id: ApprovalId


class ReleasePhase(StrEnum):
    """Where a release is. `observing` covers every traffic stage; `awaiting-approval` comes before any."""

    ADMITTING = "admitting"
    PUBLISHING = "publishing"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    WARMING_UP = "warming-up"
    AWAITING_APPROVAL = "awaiting-approval"
    OBSERVING = "observing"
    PROMOTING = "promoting"
    RETURNING = "returning"
    PARACHUTE = "parachute"
    RETIRING = "retiring"
    ROLLING_BACK = "rolling-back"
    DONE = "done"


class Outcome(StrEnum):
    """How a release ended. `refused` means the candidate never got traffic.

    `abandoned`: its workflow ended without a word, and another release took its lock over.
    """

    PROMOTED = "promoted"
    ROLLED_BACK = "rolled-back"
    REFUSED = "refused"
    ABANDONED = "abandoned"


class Step(Message):
    """One line of a release's story."""

    at: datetime
    text: str


class Parachute(Message):
    """The instances that hold the way back: it is instant while each of them is ready at `revision`.

    `otherwise` is what going back costs when one is not.
    """

    revision: int
    instances: tuple[str, ...]
    otherwise: str


class ReleaseStatus(Message):
    """The answer of the `status` query. `split` is the mesh's read-back, not an intention.

    `waiting_for` says what a held release needs from people; empty while it needs nothing. `judging` is the
    judge's latest word on the stage, of which the workflow knows nothing yet: the client adds it.
    `way_back_until` is when a parachute is let go; None without one. `approval_refusal` says why an approval
    would not be counted now; empty while one would. `parachute` is who holds the way back while one is up;
    the registry sees how its instances fare, the workflow does not.
    """

    release_id: str
    service: Service
    artifact_id: Name
    phase: ReleasePhase
    stage_weight: int | None = None
    split: TrafficSplit | None = None
    verdict: StageVerdict | None = None
    outcome: Outcome | None = None
    reason: str = ""
    way_back: str = "none"
    way_back_until: datetime | None = None
    parachute: Parachute | None = None
    held: bool = False
    paused: bool = False
    waiting_for: str = ""
    judging: str = ""
    approval_refusal: str = ""
    steps: tuple[Step, ...] = ()


class ReleaseResult(Message):
    """What the workflow returns. `rollback_seconds` runs from the decision to the read-back."""

    release_id: str
    outcome: Outcome
    reason: str
    split: TrafficSplit | None
    rollback_seconds: float | None = None


class Admission(Message):
    """A request for the release lock of a service."""

    request: ReleaseRequest
    run_id: str


class Admitted(Message):
    """The lock is held: the epoch for this release's fences, and what is published now."""

    epoch: int
    targets: Targets


class Completion(Message):
    """The end of a release; frees the lock. Idempotent by release id."""

    service: Service
    release_id: str
    outcome: Outcome
    reason: str
    fence: Fence


class ReleaseRecord(Message):
    """The registry's row about a release; `outcome` is None while it is active.

    `request_key` and `request_digest` tell a caller that repeats a request whether it already ran.
    """

    release_id: str
    service: Service
    artifact_id: Name
    operator: str
    epoch: int
    outcome: Outcome | None = None
    reason: str = ""
    started_at: datetime
    finished_at: datetime | None = None
    run_id: str = ""
    request_key: str | None = None
    request_digest: str = ""
