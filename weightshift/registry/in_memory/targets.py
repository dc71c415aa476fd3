"""The desired targets."""

from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Publication, Target, Targets
from weightshift.registry import rules
from weightshift.registry.artifact_rules import approval_operations
from weightshift.registry.chain import ARTIFACT_ENVIRONMENT
from weightshift.registry.in_memory.state import MemoryState


class MemoryTargets(MemoryState):
    """Publishes targets."""

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets, old authorisations renewed."""
        self._check_available()
        published = Targets(
            stable=self._target(service, Cohort.STABLE), canary=self._target(service, Cohort.CANARY)
        )
        return rules.renewed(published, self._authoriser, now=self._clock())

    async def publish(self, publication: Publication) -> Target:
        """Publish a target with its audit row; a refusal is counted.

        Raises `ArtifactNotReady`, `RevisionConflict`, `StaleFence`, `OperationConflict`.
        """
        self._check_available()
        with self._counting(publication.service):
            return self._publish(publication)

    def _publish(self, publication: Publication) -> Target:
        service, cohort = publication.service, publication.cohort
        if first := self._find(service.environment, publication.operation_id):
            published = rules.repeated_publication(publication, first)
            _, newest = self._targets.get((service, cohort), (None, None))
            self._note_repeat(service, publication.fence, newest)
            return published
        artifact = self._ready(service.model, publication.artifact_id)
        current, fence = self._targets.get((service, cohort), (None, None))
        rules.check_publication(
            publication, current=current, cohort_fence=fence, last_epoch=self._last_epoch.get(service, 0)
        )
        revision = self._last_revision.get(service, 0) + 1
        target = rules.next_target(
            publication, artifact=artifact, current=current, revision=revision, updated_at=self._clock()
        )
        if self._authoriser is not None:
            target = self._authoriser.authorise(target, artifact=artifact, previous=current)
        approvals = [
            one
            for one in self._approvals.values()
            if (one.service, one.release_id) == (service, publication.release_id)
        ]
        found = (self._find(ARTIFACT_ENVIRONMENT, operation) for operation in approval_operations(artifact))
        self._append(
            rules.publication_entry(
                publication,
                target,
                previous=current,
                artifact=artifact,
                artifact_approvals=[row for row in found if row is not None],
                approvals=approvals,
            )
        )
        self._last_revision[service] = revision
        self._targets[service, cohort] = target, publication.fence
        self.bell.ring(service)
        return target
