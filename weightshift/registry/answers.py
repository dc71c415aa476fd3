"""The lists that the HTTP service answers with, and what may follow a path's question mark."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from weightshift.contracts.approval import ApprovalLifetime
from weightshift.contracts.base import Count, Digest, Document, Identifier, Message, Name, Text, printable
from weightshift.contracts.evidence import AuditQuery, AuditRow, Moment
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import ReleaseRecord
from weightshift.contracts.wave import WaveGrant

MAX_WAIT_SECONDS = 30


class Identity(Message):
    """Whose token came with a request, and what it is bound to."""

    subject: str
    role: str
    model: str
    environment: str


class InstanceList(Message):
    """A service's instances."""

    instances: tuple[InstanceState, ...]


class ArtifactList(Message):
    """A model's artifacts, newest first."""

    artifacts: tuple[ArtifactRecord, ...]


class ReleaseList(Message):
    """A service's releases, newest first."""

    releases: tuple[ReleaseRecord, ...]


class GrantList(Message):
    """A service's wave grants that are in force."""

    grants: tuple[WaveGrant, ...]


class AuditRows(Message):
    """One page of an audit chain, oldest row first."""

    rows: tuple[AuditRow, ...]


class Registration(Message):
    """What a client says of an artifact; everything else in its record is the registry's to say."""

    model: Name
    artifact_id: Name
    manifest_uri: Annotated[str, Field(max_length=4_096), AfterValidator(printable)]
    manifest_sha256: Digest
    feature_schema: Name
    signature_sha256: Digest | None = None

    def record(self) -> ArtifactRecord:
        """Return the record to be stored."""
        return ArtifactRecord.model_validate(self.model_dump())


class Reason(Document):
    """Why somebody decided something."""

    reason: Text = Field(min_length=1)


class ReleaseApproval(Document):
    """Which release somebody approves; `operation_id` makes a repeat return the first approval."""

    release_id: Identifier
    artifact_id: Name
    lifetime: ApprovalLifetime = timedelta(days=1)
    operation_id: Identifier
    reason: Text = ""


class Wait(Document):
    """How long (seconds) a read may wait for a target other than the known one."""

    wait: float = Field(default=0.0, ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)


class AuditFilters(Document):
    """Which rows of a chain to read: the first `limit` after sequence `after` that match everything."""

    release: Identifier | None = None
    operator: Identifier | None = None
    since: Moment | None = None
    until: Moment | None = None
    after: Count = 0
    limit: int = Field(default=500, ge=1, le=1_000)

    @classmethod
    def of(cls, query: AuditQuery) -> "AuditFilters":
        """Return the filters of a query; the path says the rest."""
        fields = query.model_dump(exclude={"environment", "model", "release_id"})
        return cls(release=query.release_id, **fields)

    def query(self, environment: str, model: str | None) -> AuditQuery:
        """Return the query of one chain, for one model or all."""
        return AuditQuery(
            environment=environment,
            model=model,
            release_id=self.release,
            **self.model_dump(exclude={"release"}),
        )
