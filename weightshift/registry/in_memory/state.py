"""What the in-memory registry keeps. Shared by its topics."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.contracts.approval import Approval, ApprovalPolicy
from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.health import Incident
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import ReleaseRecord
from weightshift.contracts.target import Target
from weightshift.contracts.wave import WaveGrant
from weightshift.errors import Conflict, RegistryUnreachable
from weightshift.registry.artifact_rules import ready_artifact
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, chained
from weightshift.registry.rules import incident_of, is_overtaken
from weightshift.registry.watch import TargetBell

_ANYBODY = ApprovalPolicy(pusher_may_approve=True)


class MemoryState:
    """Every row, and the audit chains. No method awaits anything, so each is one transaction."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        approval_policy: ApprovalPolicy = _ANYBODY,
        authoriser: ReleaseAuthoriser | None = None,
    ) -> None:
        self.available = True
        self.bell = TargetBell()
        self._clock = clock
        self._policy = approval_policy
        self._authoriser = authoriser
        self._artifacts: dict[tuple[str, str], ArtifactRecord] = {}
        self._targets: dict[tuple[Service, Cohort], tuple[Target, Fence]] = {}
        self._last_revision: dict[Service, int] = {}
        self._last_epoch: dict[Service, int] = {}
        self._releases: dict[str, ReleaseRecord] = {}
        self._approvals: dict[str, Approval] = {}
        self._reports: dict[tuple[Service, str], tuple[InstanceReport, datetime]] = {}
        self._wave_fences: dict[Service, Fence] = {}
        self._grants: dict[Service, list[WaveGrant]] = {}
        self._incidents: Counter[tuple[Service, Incident]] = Counter()
        self._chains: dict[str, list[AuditRow]] = {}

    def _check_available(self) -> None:
        if not self.available:
            raise RegistryUnreachable

    @contextmanager
    def _counting(self, service: Service) -> Iterator[None]:
        """Count a refusal that an operator should hear of."""
        try:
            yield
        except Conflict as error:
            if incident := incident_of(error):
                self._incidents[service, incident] += 1
            raise

    def _note_repeat(self, service: Service, fence: Fence, newest: Fence | None) -> None:
        if is_overtaken(fence, newest=newest, last_epoch=self._last_epoch.get(service, 0)):
            self._incidents[service, Incident.STALE_FENCE] += 1

    def _ready(self, model: str, artifact_id: str) -> ArtifactRecord:
        return ready_artifact(
            self._artifacts.get((model, artifact_id)),
            model=model,
            artifact_id=artifact_id,
            must_be_signed=self._authoriser is not None,
        )

    def _target(self, service: Service, cohort: Cohort) -> Target | None:
        return self._targets.get((service, cohort), (None, None))[0]

    def _find(self, environment: str, operation_id: str) -> AuditRow | None:
        rows = self._chains.get(environment, [])
        return next((row for row in rows if row.operation_id == operation_id), None)

    def _append(self, entry: Entry) -> None:
        chain = self._chains.setdefault(entry.service.environment, [])
        previous_hash = chain[-1].hash if chain else FIRST_PREVIOUS_HASH
        chain.append(
            chained(entry, sequence=len(chain) + 1, previous_hash=previous_hash, recorded_at=self._clock())
        )
