"""The activity that appends a release's evidence to the audit chain."""

from temporalio import activity

from activities.failures import application_errors
from activities.options import RECORD_EVIDENCE
from weightshift.contracts.commands import EvidenceBatch
from weightshift.registry.base import Registry


class EvidenceActivities:
    """Writes evidence; a repeated row is recognised by its operation id."""

    def __init__(self, *, registry: Registry) -> None:
        self._registry = registry

    @activity.defn(name=RECORD_EVIDENCE.name)
    async def record(self, batch: EvidenceBatch) -> None:
        """Append the rows in order."""
        with application_errors():
            for row in batch.rows:
                await self._registry.record_evidence(row)
