"""Wave grants: which instances may swap to a revision now. No grant, no swap."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from weightshift.contracts.base import Duration, Message, Name, Revision
from weightshift.contracts.identity import Fence, Service

Lifetime = Annotated[Duration, Field(gt=timedelta(0), le=timedelta(days=1))]


class WaveRequest(Message):
    """A request to let some instances swap to a revision, for `lifetime` by the registry's clock."""

    service: Service
    revision: Revision
    instance_ids: tuple[Name, ...] = Field(min_length=1, max_length=1_000)
    lifetime: Lifetime
    fence: Fence
    operation_id: str = Field(min_length=1, max_length=200)
    release_id: str
    operator: str
    reason: str = ""


class WaveRevocation(Message):
    """A request to end every grant of a service. Grants older than its fence never come back."""

    service: Service
    fence: Fence
    operation_id: str = Field(min_length=1, max_length=200)
    release_id: str
    operator: str
    reason: str = ""


class WaveGrant(Message):
    """A grant that is in force: until `expires_at`, a revocation, or the admission of a newer release."""

    service: Service
    revision: Revision
    instance_ids: tuple[Name, ...]
    fence: Fence
    expires_at: datetime

    def covers(self, instance_id: str, revision: int) -> bool:
        """Whether it lets an instance swap to a revision."""
        return revision == self.revision and instance_id in self.instance_ids
