"""Every activity a workflow may call: its name, types, timeouts and retries, in one place.

Imports no adapter, so that workflow code can use it.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from temporalio.common import RetryPolicy

from weightshift.contracts.approval import ApprovalCheck, CheckedApprovals
from weightshift.contracts.commands import (
    JUDGE_ACTIVITY,
    Admittance,
    Adoption,
    Capacity,
    CapacityCheck,
    CompleteCommand,
    FleetProgress,
    FleetWait,
    JudgedProgress,
    JudgedWait,
    MeshWrite,
    Observation,
    Observed,
    PublishCommand,
    ScaleDown,
    ScaledUp,
    ScaleUp,
    WaveCommand,
)
from weightshift.contracts.identity import Service
from weightshift.contracts.notification import Notification
from weightshift.contracts.release import Admission
from weightshift.contracts.target import Target
from weightshift.contracts.traffic import MeshState
from weightshift.contracts.wave import WaveGrant, WaveRevocation

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")

CONTROL_QUEUE = "weightshift"
ROLLBACK_STUCK = (
    "weightshift_rollback_stuck",
    "Attempts of a rollback to seal that were refused or beyond the fifth, or to restore stable",
)
"""Name and description of a counter that activities and workflows add to."""

_SHORT = timedelta(seconds=15)
_HEARTBEAT = timedelta(seconds=10)
_LONGEST_ATTEMPT = timedelta(days=30)

_PATIENT = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=10),
)
_EAGER = RetryPolicy(
    initial_interval=timedelta(milliseconds=50),
    backoff_coefficient=1.5,
    maximum_interval=timedelta(seconds=2),
)
_COURTEOUS = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    backoff_coefficient=2,
    maximum_interval=timedelta(minutes=1),
    maximum_attempts=8,
)


def mesh_queue(control_queue: str) -> str:
    """Return the task queue of mesh writes: never behind a long wait, so that a rollback is not either."""
    return f"{control_queue}-mesh"


@dataclass(frozen=True)
class Call(Generic[Argument, Answer]):
    """One activity as the workflow sees it.

    `give_up_after` bounds the whole call with its retries; None retries without end, for what must
    happen in the end. `longest_attempt` bounds one attempt.
    """

    name: str
    answer: type[Answer]
    retry: RetryPolicy = field(default_factory=lambda: _PATIENT)
    longest_attempt: timedelta = _SHORT
    give_up_after: timedelta | None = timedelta(minutes=5)
    heartbeat: timedelta | None = None
    on_mesh_queue: bool = False


ADMIT = Call[Admission, Admittance]("registry.admit", Admittance)
PUBLISH = Call[PublishCommand, Target]("registry.publish", Target)
SEAL = Call[PublishCommand, Target]("registry.publish", Target, give_up_after=None)
CHECK_APPROVALS = Call[ApprovalCheck, CheckedApprovals](
    "registry.check_approvals", CheckedApprovals, give_up_after=timedelta(seconds=15)
)
GRANT_WAVE = Call[WaveCommand, WaveGrant]("registry.grant_wave", WaveGrant)
REVOKE_WAVES = Call[WaveRevocation, None]("registry.revoke_waves", type(None), give_up_after=None)
COMPLETE = Call[CompleteCommand, None]("registry.complete", type(None), give_up_after=None)


def _fleet_wait(name: str) -> Call[FleetWait, FleetProgress]:
    """A wait on the fleet: as long as its caller grants, in one attempt that proves itself alive."""
    return Call(
        name, FleetProgress, longest_attempt=_LONGEST_ATTEMPT, give_up_after=None, heartbeat=_HEARTBEAT
    )


DOWNLOAD = _fleet_wait("fleet.download")
VERIFY = _fleet_wait("fleet.verify")
WARM_UP = _fleet_wait("fleet.warm_up")
SWAP = Call[JudgedWait, JudgedProgress](
    "fleet.warm_up_judged",
    JudgedProgress,
    longest_attempt=_LONGEST_ATTEMPT,
    give_up_after=None,
    heartbeat=_HEARTBEAT,
)
ADOPT = Call[Adoption, FleetProgress](
    "fleet.adopt", FleetProgress, longest_attempt=_LONGEST_ATTEMPT, give_up_after=None, heartbeat=_HEARTBEAT
)
CHECK_CAPACITY = Call[CapacityCheck, Capacity]("fleet.check_capacity", Capacity)

SCALE_UP = Call[ScaleUp, ScaledUp](
    "cluster.scale_up", ScaledUp, longest_attempt=_LONGEST_ATTEMPT, give_up_after=None, heartbeat=_HEARTBEAT
)
SCALE_DOWN = Call[ScaleDown, None]("cluster.scale_down", type(None), give_up_after=timedelta(minutes=1))

SHIFT = Call[MeshWrite, MeshState](
    "mesh.write", MeshState, retry=_EAGER, give_up_after=timedelta(minutes=1), on_mesh_queue=True
)
READ_MESH = Call[Service, MeshState](
    "mesh.read", MeshState, retry=_EAGER, give_up_after=None, on_mesh_queue=True
)
CUT = Call[MeshWrite, MeshState](
    "mesh.write", MeshState, retry=_EAGER, give_up_after=None, on_mesh_queue=True
)

OBSERVE = Call[Observation, Observed](
    JUDGE_ACTIVITY,
    Observed,
    longest_attempt=_LONGEST_ATTEMPT,
    give_up_after=None,
    heartbeat=_HEARTBEAT,
)

NOTIFY = Call[Notification, None](
    "notify.send", type(None), retry=_COURTEOUS, longest_attempt=timedelta(seconds=10)
)
