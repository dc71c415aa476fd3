"""The release plan: stages, windows and gates, as people write them."""

from datetime import timedelta
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from weightshift.contracts.base import Document, Duration

MAX_STAGES = 20


class Metric(StrEnum):
    """What a gate measures. An unknown name is refused when the plan is read."""

    ERROR_RATE = "error_rate"
    LATENCY = "latency"


class OnInconclusive(StrEnum):
    """What happens when a window ends without enough evidence either way."""

    HOLD = "hold"
    ROLLBACK = "rollback"


class Promotion(StrEnum):
    """How stable takes the artifact over."""

    IDLE_SWAP = "idle-swap"


class Gate(Document):
    """One condition the canary must meet.

    Absolute with `maximum`: for `error_rate` a fraction of requests, for `latency` the seconds that
    the `quantile` may not exceed. Comparative with `ratio`: the canary may not be worse than stable
    by more than this factor. `margin` is an additional fraction of requests that is forgiven.
    """

    metric: Metric
    maximum: float | None = Field(default=None, gt=0)
    ratio: float | None = Field(default=None, ge=1.0, le=10.0)
    margin: float = Field(default=0.0005, ge=0, lt=0.5)
    quantile: float = Field(default=0.99, gt=0, lt=1)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.maximum is None) == (self.ratio is None):
            raise ValueError("a gate needs exactly one of `maximum` (absolute) and `ratio`")
        if self.metric is Metric.ERROR_RATE and self.maximum is not None and self.maximum >= 1:
            raise ValueError("`maximum` of error_rate is a fraction below 1")
        return self

    @property
    def is_absolute(self) -> bool:
        """Whether the gate compares with a fixed limit instead of with stable."""
        return self.maximum is not None

    @property
    def name(self) -> str:
        """A readable name, unique for distinct gates."""
        subject = self.metric if self.metric is Metric.ERROR_RATE else f"p{self.quantile * 100:g}"
        return f"{subject} <= {self.maximum:g}" if self.maximum else f"{subject} ratio {self.ratio:g}"


class Stage(Document):
    """One step of the traffic shift; what it leaves out comes from the plan."""

    weight: int = Field(ge=1, le=100)
    window: Duration | None = None
    max_window: Duration | None = None
    min_samples: int | None = Field(default=None, ge=0)
    gates: tuple[Gate, ...] | None = None


class ResolvedStage(Document):
    """A stage with every value filled in: what the workflow and the judge work with."""

    weight: int
    window: timedelta
    max_window: timedelta
    min_samples: int
    gates: tuple[Gate, ...]


DEFAULT_GATES = (
    Gate(metric=Metric.ERROR_RATE, maximum=0.03),
    Gate(metric=Metric.ERROR_RATE, ratio=1.1),
    Gate(metric=Metric.LATENCY, ratio=1.1),
)


class Plan(Document):
    """How a release moves. Weights must rise and end at 100."""

    stages: tuple[Stage, ...] = Field(
        default=(Stage(weight=5), Stage(weight=25), Stage(weight=50), Stage(weight=100)),
        min_length=1,
        max_length=MAX_STAGES,
    )
    window: Duration = timedelta(minutes=10)
    interval: Duration = timedelta(seconds=10)
    max_window: Duration = timedelta(hours=1)
    min_samples: int = Field(default=200, ge=0)
    on_inconclusive: OnInconclusive = OnInconclusive.HOLD
    gates: tuple[Gate, ...] = Field(default=DEFAULT_GATES, min_length=1)
    promotion: Promotion = Promotion.IDLE_SWAP
    retain: Duration = timedelta(minutes=30)
    load_deadline: Duration = timedelta(minutes=30)

    @model_validator(mode="before")
    @classmethod
    def _bare_weights(cls, value: object) -> object:
        """Accept `stages: [5, 25, 50, 100]` as well as objects."""
        if isinstance(value, dict) and isinstance(value.get("stages"), list | tuple):
            stages = [{"weight": item} if isinstance(item, int) else item for item in value["stages"]]
            return {**value, "stages": stages}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def resolved_stages(self) -> tuple[ResolvedStage, ...]:
        """Return every stage with the plan's defaults filled in."""
        return tuple(_resolve(self, stage) for stage in self.stages)


def _resolve(plan: Plan, stage: Stage) -> ResolvedStage:
    window = plan.window if stage.window is None else stage.window
    longest = plan.max_window if stage.max_window is None else stage.max_window
    return ResolvedStage(
        weight=stage.weight,
        window=window,
        max_window=max(longest, window),
        min_samples=plan.min_samples if stage.min_samples is None else stage.min_samples,
        gates=plan.gates if stage.gates is None else stage.gates,
    )


def _problems(plan: Plan) -> list[str]:
    """List every inconsistency at once, so that one edit mends them all."""
    weights = [stage.weight for stage in plan.stages]
    found = []
    if weights != sorted(set(weights)):
        found.append(f"stages: weights must rise, got {weights}")
    if weights[-1] != 100:
        found.append(f"stages: the last weight must be 100, got {weights[-1]}")
    if plan.interval < timedelta(milliseconds=200):
        found.append("interval: at least 200ms")
    if plan.max_window < plan.window:
        found.append("max_window: shorter than window")
    for number, stage in enumerate(plan.resolved_stages(), start=1):
        if not any(gate.is_absolute for gate in stage.gates):
            found.append(f"stage {number}: needs at least one absolute gate (`maximum`)")
        names = [gate.name for gate in stage.gates]
        if len(set(names)) != len(names):
            found.append(f"stage {number}: a gate is declared twice")
    return found
