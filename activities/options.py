"""Every activity a workflow may call: its name, types, timeouts and retries, in one place.

Imports no adapter, so that workflow code can use it.
"""

from dataclasses import dataclass, field, replace
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
# A thousand judges on one worker must be heard of in time, also while it is busy.
_HEARTBEAT = timedelta(seconds=15)
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


def waits_queue(control_queue: str) -> str:
    """Return the task queue of what may take long, so that a rollback is never behind it.

    Short commands stay on their workflow's own queue: the server then hands them over together with the
    workflow task, which saves a rollback 10 to 17 ms.
    """
    return f"{control_queue}-waits"


@dataclass(frozen=True)
class Call(Generic[Argument, Answer]):
    """One activity as the workflow sees it.

    `give_up_after` bounds the whole call with its retries; None retries without end, for what must
    happen in the end. `longest_attempt` bounds one attempt. `waits` for what waits on others: it has a
    task queue of its own.
    """

    name: str
    answer: type[Answer]
    retry: RetryPolicy = field(default_factory=lambda: _PATIENT)
    longest_attempt: timedelta = _SHORT
    give_up_after: timedelta | None = timedelta(minutes=5)
    heartbeat: timedelta | None = None
    waits: bool = False


ADMIT = Call[Admission, Admittance]("registry.admit", Admittance)
PUBLISH = Call[PublishCommand, Target]("registry.publish", Target)
SEAL = Call[PublishCommand, Target]("registry.publish", Target, give_up_after=None)
CHECK_APPROVALS = Call[ApprovalCheck, CheckedApprovals](
    "registry.check_approvals", CheckedApprovals, give_up_after=timedelta(seconds=15)
)
GRANT_WAVE = Call[WaveCommand, WaveGrant]("registry.grant_wave", WaveGrant)
REVOKE_WAVES = Call[WaveRevocation, None]("registry.revoke_waves", type(None), give_up_after=None)
COMPLETE = Call[CompleteCommand, None]("registry.complete", type(None), give_up_after=None)


def _wait(name: str, argument: type[Argument], answer: type[Answer]) -> Call[Argument, Answer]:
    """A wait as long as its caller grants, in one attempt that proves itself alive."""
    return Call(
        name,
        answer,
        longest_attempt=_LONGEST_ATTEMPT,
        give_up_after=None,
        heartbeat=_HEARTBEAT,
        waits=True,
    )


DOWNLOAD = _wait("fleet.download", FleetWait, FleetProgress)
VERIFY = _wait("fleet.verify", FleetWait, FleetProgress)
WARM_UP = _wait("fleet.warm_up", FleetWait, FleetProgress)
# A rollback waits for stable, and never behind judges.
RESTORE = replace(WARM_UP, waits=False)
SWAP = _wait("fleet.warm_up_judged", JudgedWait, JudgedProgress)
ADOPT = _wait("fleet.adopt", Adoption, FleetProgress)
CHECK_CAPACITY = Call[CapacityCheck, Capacity]("fleet.check_capacity", Capacity)

SCALE_UP = _wait("cluster.scale_up", ScaleUp, ScaledUp)
SCALE_DOWN = Call[ScaleDown, None](
    "cluster.scale_down", type(None), give_up_after=timedelta(minutes=1), waits=True
)

SHIFT = Call[MeshWrite, MeshState]("mesh.write", MeshState, retry=_EAGER, give_up_after=timedelta(minutes=1))
READ_MESH = Call[Service, MeshState]("mesh.read", MeshState, retry=_EAGER, give_up_after=None)
CUT = Call[MeshWrite, MeshState]("mesh.write", MeshState, retry=_EAGER, give_up_after=None)

OBSERVE = _wait(JUDGE_ACTIVITY, Observation, Observed)

NOTIFY = Call[Notification, None](
    "notify.send", type(None), retry=_COURTEOUS, longest_attempt=timedelta(seconds=10), waits=True
)
