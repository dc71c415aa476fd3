"""What the release workflow tells its activities, and what they answer. Ids and figures only."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from weightshift.contracts.approval import CheckedApproval
from weightshift.contracts.base import Message
from weightshift.contracts.cluster import Pool
from weightshift.contracts.control import Control
from weightshift.contracts.curve import StageCurve
from weightshift.contracts.evidence import Evidence
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import CandidatePhase
from weightshift.contracts.plan import ResolvedStage
from weightshift.contracts.release import Completion
from weightshift.contracts.target import Publication, Targets
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.contracts.verdict import StageVerdict
from weightshift.contracts.wave import WaveRequest


class InstanceRef(Message):
    """One process of one instance: a restarted instance has another `boot_id`.

    `capacity` is what it can carry, relative to other instances of the service.
    """

    instance_id: str
    boot_id: str
    capacity: float = 1.0


class Admittance(Message):
    """The answer to an admission: the epoch, what is published, and which instances there are.

    `first` is True while no release of the service was ever promoted: there is no way back then.
    `taken_over` names the release whose lock was taken because its workflow had ended without freeing it;
    its traffic split has to be brought to an end first. `traffic` is what the mesh did at admission.
    `remarks` are what is worth telling about the plan on the traffic and the instances there are.
    `window_by_judge` is False for releases that began when every judgement had a timer beside it, and
    `joined_waits` for those that began when every wait was an activity of its own and nobody judged while an
    idle stable swapped. `control` is what the plan asks for; there was none before.
    """

    epoch: int
    targets: Targets
    first: bool
    taken_over: str | None = None
    approvals: tuple[CheckedApproval, ...] = ()
    remarks: tuple[str, ...] = ()
    window_by_judge: bool = False
    joined_waits: bool = False
    control: Control = Control.NONE
    traffic: MeshState | None = None
    stable: tuple[InstanceRef, ...] = ()
    canary: tuple[InstanceRef, ...] = ()


class LostInstances(StrEnum):
    """What a wait does about its instances that no longer report, or are leaving.

    `awaited`: it waits for them, by name. `replaced`: others of their cohort that have passed count in their
    place, by what they can carry. `covered`: it waits until the cohort carries as much as before, whatever
    its instances serve.
    """

    AWAITED = "awaited"
    REPLACED = "replaced"
    COVERED = "covered"


class FleetWait(Message):
    """Wait until every named instance of a cohort has passed a phase with this revision.

    With `tolerate_lost`, lost instances are not waited for; where none is left, those that the cohort has
    now are. `capacity` is what a cohort has to carry in which `lost` ones are covered.
    """

    service: Service
    cohort: Cohort
    revision: int
    phase: CandidatePhase
    instances: tuple[InstanceRef, ...]
    tolerate_lost: bool = False
    lost: LostInstances = LostInstances.AWAITED
    capacity: float = 0.0


class InstanceProgress(Message):
    """What one instance took for a phase: bytes, seconds, and peak memory where it was measured."""

    instance: InstanceRef
    bytes_done: int = 0
    phase_seconds: dict[str, float] = Field(default_factory=dict)
    peak_memory_bytes: int | None = None

    @property
    def busy_seconds(self) -> float:
        """What all phases took together, without waiting for a turn or for a grant."""
        return sum(
            seconds for phase, seconds in self.phase_seconds.items() if phase != CandidatePhase.WAITING
        )


class FleetProgress(Message):
    """The answer to a `FleetWait`: one entry per instance."""

    instances: tuple[InstanceProgress, ...]


class CapacityCheck(Message):
    """Ask which instances of a cohort are ready to serve this revision."""

    service: Service
    cohort: Cohort
    revision: int
    instances: tuple[InstanceRef, ...]


class Capacity(Message):
    """The instances that are ready, and those that are not, with the reason; `pool` is the cluster's view.

    With `all_serve`, every instance reports that it serves the revision: what is missing may be there in a
    moment, as after one readiness probe that failed.
    """

    ready: tuple[InstanceRef, ...]
    missing: tuple[str, ...] = ()
    pool: Pool | None = None
    all_serve: bool = False


class ScaleUp(Message):
    """Have at least so many canary pods, and wait until as many instances report.

    With `like_stable` there must be one then of each build and GPU that stable has.
    """

    service: Service
    replicas: int
    fence: Fence
    like_stable: bool = False


class ScaledUp(Message):
    """The canary's instances after a `ScaleUp`, and what the cluster says of their pods."""

    instances: tuple[InstanceRef, ...]
    pool: Pool


class ScaleDown(Message):
    """Have as many canary pods as before the `ScaleUp`; those in `keep` are the last to go."""

    service: Service
    keep: tuple[str, ...]
    fence: Fence


class MeshWrite(Message):
    """Set a split; refused when a newer fence was seen, and when the mesh does not do what is `expected`.

    With `must_happen`, as for a rollback, every refusal but that of a newer command is tried again. With that
    or `may_go_unconfirmed`, a data plane that does not show the split in time is not waited for without end.
    """

    service: Service
    split: TrafficSplit
    fence: Fence
    expected: MeshState | None = None
    must_happen: bool = False
    may_go_unconfirmed: bool = False


class CarriedWealth(Message):
    """The state of one gate's evidence of harm, carried from stage to stage."""

    active: tuple[float, ...]
    idle: float


class ObserveMode(StrEnum):
    """When an observation may end, other than by a breach.

    `window`: healthy once the window is over, or inconclusive at the longest window. `hold`: only
    healthy. `watch`: never, as while a release is paused.
    """

    WINDOW = "window"
    HOLD = "hold"
    WATCH = "watch"


JUDGE_ACTIVITY = "metrics.observe"
"""The activity that judges a stage; each of its heartbeats carries the judge's latest word."""


class Observation(Message):
    """Judge one stage from its start, every interval, until the outcome is known.

    `traffic` is what the mesh was read back to do; a stage under which somebody changes it is lost.
    """

    release_id: str
    service: Service
    stage: ResolvedStage
    interval: timedelta
    started_at: datetime
    canary_revision: int
    stable_revision: int
    canary: tuple[InstanceRef, ...]
    traffic: MeshState | None = None
    wealth: dict[str, CarriedWealth] = Field(default_factory=dict)
    mode: ObserveMode = ObserveMode.WINDOW
    evidence: tuple[Evidence, ...] = ()


class Observed(Message):
    """A stage's verdict with the numbers behind it, and the wealth to carry into the next one.

    `evidence_recorded` is False when the registry was away: the rows have to be sent again.
    """

    verdict: StageVerdict
    evidence_recorded: bool = False
    wealth: dict[str, CarriedWealth] = Field(default_factory=dict)
    curve: StageCurve = StageCurve()


class JudgedWait(Message):
    """Wait for one cohort, and judge the canary meanwhile."""

    wait: FleetWait
    observation: Observation


class JudgedProgress(Message):
    """The answer to a `JudgedWait`: the progress, or the breach that was found before."""

    progress: FleetProgress | None = None
    observed: Observed | None = None


class PublishCommand(Message):
    """A publication, and the evidence gathered before it, which is recorded first."""

    publication: Publication
    evidence: tuple[Evidence, ...] = ()


class Adoption(Message):
    """A publication, and the wait until the instances serve it, whose revision is that of the publication."""

    publish: PublishCommand
    wait: FleetWait


class WaveCommand(Message):
    """A wave to be granted, and the evidence gathered before it, which is recorded first."""

    request: WaveRequest
    evidence: tuple[Evidence, ...] = ()


class CompleteCommand(Message):
    """The end of a release, and the evidence gathered before it, which is recorded first."""

    completion: Completion
    evidence: tuple[Evidence, ...] = ()
