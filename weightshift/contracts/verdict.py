"""What a gate, and a stage as a whole, can be judged to be."""

from enum import StrEnum

from pydantic import Field

from weightshift.contracts.base import Message


class GateVerdict(StrEnum):
    """The outcome of one gate. Only `healthy` lets a stage pass; only `breach` ends it."""

    HEALTHY = "healthy"
    BREACH = "breach"
    INSUFFICIENT = "insufficient"
    NO_DATA = "no_data"
    NOT_APPLICABLE = "not_applicable"
    ERROR = "error"


class GateResult(Message):
    """One gate's outcome with the figures it rests on (natural logs of evidence)."""

    gate: str
    verdict: GateVerdict
    detail: str = ""
    figures: dict[str, float] = Field(default_factory=dict)


class StageOutcome(StrEnum):
    """The outcome of a stage: go on, go back, or not enough evidence yet."""

    HEALTHY = "healthy"
    BREACH = "breach"
    INCONCLUSIVE = "inconclusive"


class StageVerdict(Message):
    """A stage's outcome, why, and every gate's result; counts of requests per arm."""

    outcome: StageOutcome
    reason: str
    gates: tuple[GateResult, ...] = ()
    intervals: int = 0
    canary_requests: int = 0
    stable_requests: int = 0
