"""What a release leaves behind: one row per step, in the audit chain."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field

from weightshift.contracts.base import Count, Document, Identifier, Message, Name, ReportedText
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("lies outside the years 1 to 9999 in UTC") from None


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A point in time that every time zone can tell; kept in UTC."""


class Evidence(Message):
    """One decided or observed fact, of a release if one ran. `operation_id` makes a repeat harmless."""

    service: Service
    release_id: str | None
    operation_id: str
    step: str
    operator: str = ""
    summary: str
    data: dict[str, Any] = Field(default_factory=dict)


class BrokenGlass(Document):
    """Traffic that a person moved past whatever release there was. `operation_id` makes a repeat harmless.

    Its texts are cleaned and never refused: that traffic was moved counts, whatever the wording.
    """

    operation_id: Identifier
    before: TrafficSplit
    split: TrafficSplit
    fence: Fence
    operator: ReportedText
    reason: ReportedText = ""

    def evidence(self, service: Service, *, subject: str, release_id: str | None) -> Evidence:
        """Return the row to record, of the running release if there is one; `subject` is whose token came."""
        because = f": {self.reason}" if self.reason else ""
        return Evidence(
            service=service,
            release_id=release_id,
            operation_id=f"break-glass:{service.model}:{self.operation_id}",
            step="break-glass",
            operator=subject,
            summary=f"broke the glass ({self.operator}): traffic {self.split}, it was {self.before}{because}",
            data=self.model_dump(mode="json", exclude={"operation_id"}),
        )


class AuditRow(Message):
    """One row of the append-only chain; `hash` covers the row and `previous_hash`."""

    sequence: int
    service: Service
    operation_id: str
    release_id: str | None
    step: str
    operator: str
    summary: str
    data: dict[str, Any]
    recorded_at: datetime
    previous_hash: str
    hash: str


class AuditQuery(Message):
    """Which rows of one environment's chain to read: the first `limit` after sequence `after`."""

    environment: Name
    model: Name | None = None
    release_id: Identifier | None = None
    operator: Identifier | None = None
    since: Moment | None = None
    until: Moment | None = None
    after: Count = 0
    limit: int = Field(default=500, ge=1, le=1_000)


class AuditHead(Message):
    """The newest row of a chain. Kept outside, it shows later that nothing before it was changed or cut."""

    environment: Name
    sequence: int = Field(default=0, ge=0)
    hash: str


class Refusal(Message):
    """A request that an authenticated client sent and the registry refused as wrong or not allowed."""

    subject: str
    role: str
    method: str
    path: str
    error: str
