"""The report of one release, as data. Times are UTC, durations seconds, latencies seconds."""

from datetime import datetime

from pydantic import Field

from weightshift.contracts.base import Message
from weightshift.contracts.curve import StageCurve
from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.verdict import GateResult, StageOutcome


class SplitChange(Message):
    """From this moment on the mesh was read back to divide the traffic like this."""

    at: datetime
    split: TrafficSplit


class GateLimit(Message):
    """The limit of a gate on what a chart shows: fixed (`maximum`), or relative to stable.

    With `ratio` the canary is compared with `ratio * stable + margin`; `margin` is a fraction of requests
    and says nothing about latencies.
    """

    gate: str
    maximum: float | None = None
    ratio: float | None = None
    margin: float = 0.0


class StageReport(Message):
    """One stage as it was judged last, with the limits of its gates and the judge's own numbers."""

    weight: int
    started_at: datetime
    ended_at: datetime
    outcome: StageOutcome
    reason: str
    canary_requests: int = 0
    stable_requests: int = 0
    gates: tuple[GateResult, ...] = ()
    error_limits: tuple[GateLimit, ...] = ()
    latency_limits: tuple[GateLimit, ...] = ()
    curve: StageCurve = StageCurve()


class MeasuredArm(Message):
    """One cohort over time as Prometheus has it; None where nothing was measured."""

    error_rate: tuple[float | None, ...] = ()
    p99: tuple[float | None, ...] = ()


class Measured(Message):
    """Both cohorts from the release's start to its end, at the moments `at` (unix seconds)."""

    at: tuple[float, ...] = ()
    canary: MeasuredArm = MeasuredArm()
    stable: MeasuredArm = MeasuredArm()


class ReportedStep(Message):
    """One row of the audit chain; `at` is when it happened, not when it was recorded, where that is known."""

    at: datetime
    number: int
    step: str
    operator: str
    text: str
    hash: str


class ReportedInstance(Message):
    """What one instance took for one phase: bytes, seconds by step, and peak memory where measured."""

    phase: str
    instance_id: str
    boot_id: str
    bytes_done: int = 0
    seconds: dict[str, float] = Field(default_factory=dict)
    peak_memory_bytes: int | None = None


class ReportedTarget(Message):
    """A publication: which cohort was told to serve which artifact at which revision."""

    at: datetime
    cohort: str
    revision: int
    artifact_id: str
    previous: str


class ReportedApproval(Message):
    """Who allowed what; earlier builds did not record when an artifact was approved (`at`)."""

    of: str
    operator: str
    at: datetime | None = None
    reason: str = ""
    approval_id: str = ""


class ReleaseReport(Message):
    """Everything a release left behind. `outcome` and `finished_at` are None while it runs.

    `notes` says in sentences what could not be shown and why.
    """

    release_id: str
    service: Service
    artifact_id: str
    replaces: str | None = None
    operator: str
    why: str
    outcome: Outcome | None
    reason: str
    started_at: datetime
    finished_at: datetime | None
    duration_seconds: float
    way_back: str
    request_key: str | None = None
    splits: tuple[SplitChange, ...] = ()
    stages: tuple[StageReport, ...] = ()
    measured: Measured | None = None
    steps: tuple[ReportedStep, ...] = ()
    instances: tuple[ReportedInstance, ...] = ()
    targets: tuple[ReportedTarget, ...] = ()
    approvals: tuple[ReportedApproval, ...] = ()
    notes: tuple[str, ...] = ()
