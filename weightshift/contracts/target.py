"""Desired state: which artifact a cohort should serve, at which revision."""

from datetime import datetime

from pydantic import Field, ValidationInfo, field_validator

from weightshift.contracts.base import Count, Digest, Message, Name, Revision
from weightshift.contracts.identity import Cohort, Fence, Service

MAX_AUTHORISATION_CHARACTERS = 16_384


class Target(Message):
    """What one cohort of one service should serve. Written by releases only.

    `serve_floor` is the lowest revision that may still answer business traffic; an instance whose
    actual revision is below it refuses. With `requires_grant` an instance that serves something swaps
    only while a wave grant names it.
    """

    service: Service
    cohort: Cohort
    revision: Revision
    artifact_id: Name
    manifest_sha256: Digest
    feature_schema: Name
    serve_floor: Count = 0
    requires_grant: bool = False
    updated_at: datetime | None = None
    authorisation: str | None = Field(default=None, max_length=MAX_AUTHORISATION_CHARACTERS)

    @field_validator("serve_floor")
    @classmethod
    def _reachable(cls, floor: int, info: ValidationInfo) -> int:
        """Refuse what would keep every instance out of service for ever."""
        if floor > info.data.get("revision", floor):
            raise ValueError("is above the revision")
        return floor


class Publication(Message):
    """A request to publish a target.

    `expected_revision` is the cohort's revision the caller read (0 for a missing row); None seals:
    it is ordered by the fence alone. `operation_id` makes a repeat return the first result.
    `raise_serve_floor` forbids the cohort to serve anything older than the new revision;
    `requires_grant` lets its instances swap in waves only.
    """

    service: Service
    cohort: Cohort
    artifact_id: Name
    expected_revision: Count | None = None
    raise_serve_floor: bool = False
    requires_grant: bool = False
    fence: Fence
    operation_id: str = Field(min_length=1, max_length=200)
    release_id: str
    operator: str
    reason: str = ""


class Targets(Message):
    """Both cohorts' targets of one service, as read in one transaction; None where never set."""

    stable: Target | None = None
    canary: Target | None = None

    def of(self, cohort: Cohort) -> Target | None:
        """Return the target of one cohort."""
        return self.stable if cohort is Cohort.STABLE else self.canary
