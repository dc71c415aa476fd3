"""Actual state: what one runtime instance has loaded, and how far its candidate is."""

from enum import StrEnum

from pydantic import Field

from weightshift.contracts.base import Count, Measure, Message, Name, ReportedText
from weightshift.contracts.identity import Cohort, Service

CPU = "cpu"
"""The `device` of an instance that computes on no other one."""


class CandidatePhase(StrEnum):
    """The steps a candidate goes through on an instance, in this order; `failed` ends anywhere."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    LOADING = "loading"
    DRY_RUNNING = "dry-running"
    COMMITTING = "committing"
    INSTALLED = "installed"
    FAILED = "failed"


_PHASE_ORDER = list(CandidatePhase)


class InstanceError(Message):
    """Why a candidate failed. `permanent` errors are not retried until the target changes."""

    type: ReportedText
    message: ReportedText
    phase: CandidatePhase
    permanent: bool


class CandidateProgress(Message):
    """How far an instance is with one target. Durations in seconds, sizes in bytes.

    `error` ended this attempt; `last_error` is the latest of the target's attempts', until one succeeds.
    """

    revision: Count
    artifact_id: Name
    phase: CandidatePhase
    attempt: Count = 1
    bytes_total: Count = 0
    bytes_done: Count = 0
    phase_seconds: dict[ReportedText, Measure] = Field(default_factory=dict)
    peak_memory_bytes: Count | None = None
    error: InstanceError | None = None
    last_error: InstanceError | None = None

    def has_passed(self, phase: CandidatePhase) -> bool:
        """Whether `phase` is over; a failed candidate has passed what comes before the phase it failed in."""
        if self.phase is not CandidatePhase.FAILED:
            return _PHASE_ORDER.index(self.phase) > _PHASE_ORDER.index(phase)
        return self.error is not None and _PHASE_ORDER.index(self.error.phase) > _PHASE_ORDER.index(phase)


class LoadedGeneration(Message):
    """The generation an instance serves: loaded, verified and dry-run."""

    revision: Count
    artifact_id: Name
    manifest_sha256: ReportedText
    feature_schema: ReportedText
    generation: Count


class InstanceReport(Message):
    """What an instance says of itself. Only the runtime writes it.

    `boot_id` changes with every process start, so that a crash and quick restart is still seen.
    `insecure_unsigned` says that it loads artifacts whose signatures nobody checks.
    `servable_capacity` is relative to other instances of the service; memory is that of the device the
    model runs on; `feature_schema` is the one requests must follow now, empty while nothing serves.
    `device` is the model of what it computes on, such as `NVIDIA H200`; empty where it does not say.
    """

    instance_id: Name
    boot_id: ReportedText
    service: Service
    cohort: Cohort
    desired_revision: Count = 0
    actual: LoadedGeneration | None = None
    candidate: CandidateProgress | None = None
    ready: bool = False
    draining: bool = False
    runtime_build: ReportedText = ""
    servable_capacity: Measure = 1.0
    feature_schema: ReportedText = ""
    memory_used_bytes: Count | None = None
    memory_limit_bytes: Count | None = None
    insecure_unsigned: bool = False
    device: ReportedText = ""


class InstanceState(Message):
    """A report as the registry sees it: with its age in seconds and whether that makes it lost."""

    report: InstanceReport
    age_seconds: float
    lost: bool
