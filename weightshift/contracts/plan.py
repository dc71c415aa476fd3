"""The release plan: stages, windows and gates, as people write them."""

from datetime import timedelta
from enum import StrEnum
from string import Template
from typing import Self

from pydantic import Field, model_validator

from weightshift.contracts.base import Document, Duration, Name, PositiveDuration
from weightshift.contracts.control import Control, with_control
from weightshift.contracts.presets import from_preset
from weightshift.contracts.traffic import TrafficSplit

MAX_STAGES = 20
MAX_REPLICAS = 1_000
MAX_CHANNELS = 5
MAX_APPROVALS = 20
MAX_WAVE = 1_000


class Metric(StrEnum):
    """What a gate measures. An unknown name is refused when the plan is read."""

    ERROR_RATE = "error_rate"
    LATENCY = "latency"
    REJECT_RATE = "reject_rate"
    SCORE_DRIFT = "score_drift"
    DEVICE_MEMORY = "device_memory"
    BUSINESS = "business"


class OnInconclusive(StrEnum):
    """What happens when a window ends without enough evidence either way."""

    HOLD = "hold"
    ROLLBACK = "rollback"


class Sticky(StrEnum):
    """Who stays on one cohort while the canary's share grows: every user that requests name, or nobody."""

    NONE = "none"
    USER = "user"


class Promotion(StrEnum):
    """How stable takes the artifact over.

    `idle-swap`: while the canary carries all traffic. `in-place`: in waves under traffic, for a canary that
    is too small to carry everything; it keeps the share of the last stage.
    """

    IDLE_SWAP = "idle-swap"
    IN_PLACE = "in-place"


class OnPartial(StrEnum):
    """What a way back does while only a part of the capacity holds the healthy artifact.

    `proportional`: a cohort carries what its healthy part can, until the rest is back. `shed`: only the
    healthy side gets traffic at once, and refuses what is too much for it.
    """

    PROPORTIONAL = "proportional"
    SHED = "shed"


_MAXIMUM_ONLY = (Metric.SCORE_DRIFT, Metric.DEVICE_MEMORY)
_PLACEHOLDERS = {"model", "environment", "cohort", "revision"}


class Gate(Document):
    """One condition the canary must meet.

    Absolute with `maximum`: for rates a fraction of requests, for `latency` the seconds that the
    `quantile` may not exceed, for `device_memory` a fraction of the device's memory. Comparative with
    `ratio`: the canary may not be worse than stable by more than this factor; `margin` is an additional
    fraction of requests that is forgiven. `score_drift` compares the scores' distributions, and its
    `maximum` is the distance that is tolerated.

    `business` counts what the caller's own counters say: `bad` and `total` are PromQL selectors of raw
    counters in which `$model`, `$environment`, `$cohort` and `$revision` stand for what is measured.
    """

    metric: Metric
    maximum: float | None = Field(default=None, gt=0)
    ratio: float | None = Field(default=None, ge=1.0, le=10.0)
    margin: float = Field(default=0.0005, ge=0, lt=0.5)
    quantile: float = Field(default=0.99, gt=0, lt=1)
    label: Name | None = None
    bad: str = Field(default="", max_length=1_000)
    total: str = Field(default="", max_length=1_000)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.maximum is None) == (self.ratio is None):
            raise ValueError("a gate needs exactly one of `maximum` (absolute) and `ratio`")
        if self.metric in _MAXIMUM_ONLY and self.maximum is None:
            raise ValueError(f"{self.metric} is limited by `maximum`, not by `ratio`")
        if self.metric is not Metric.LATENCY and self.maximum is not None and self.maximum >= 1:
            raise ValueError(f"`maximum` of {self.metric} is a fraction below 1")
        selectors = (self.bad, self.total)
        if self.metric is Metric.BUSINESS:
            if self.label is None or not all(_is_template(selector) for selector in selectors):
                raise ValueError(
                    "business needs `label`, and in `bad` and `total` a selector with $revision"
                    " (others: $model, $environment, $cohort; a dollar sign itself is $$)"
                )
        elif self.label or any(selectors):
            raise ValueError(f"`label`, `bad` and `total` are for business, not for {self.metric}")
        return self

    @property
    def is_absolute(self) -> bool:
        """Whether the gate compares with a fixed limit instead of with stable."""
        return self.maximum is not None and self.metric is not Metric.SCORE_DRIFT

    @property
    def name(self) -> str:
        """A readable name, unique for distinct gates."""
        subject: str = self.metric
        if self.metric is Metric.LATENCY:
            subject = f"p{self.quantile * 100:g}"
        elif self.label is not None:
            subject = f"{self.metric} {self.label}"
        return f"{subject} <= {self.maximum:g}" if self.maximum else f"{subject} ratio {self.ratio:g}"


def _is_template(selector: str) -> bool:
    template = Template(selector)
    if not template.is_valid():
        return False
    names = set(template.get_identifiers())
    return "revision" in names and names <= _PLACEHOLDERS


class Stage(Document):
    """One step of the traffic shift; what it leaves out comes from the plan.

    `approvals` is how many distinct people must approve before its share of the traffic is written. Until
    they have, the stage before it goes on being judged.
    """

    weight: int = Field(ge=1, le=100, strict=True)
    window: Duration | None = None
    max_window: Duration | None = None
    min_samples: int | None = Field(default=None, ge=0)
    gates: tuple[Gate, ...] | None = None
    approvals: int = Field(default=0, ge=0, le=MAX_APPROVALS)


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
    """How a release moves. `preset` names what to start from.

    Weights must rise and end at 100; below it with promotion `in-place`, where `wave` is how many of stable's
    instances swap at a time, and `on_partial` what a way back does while only some of them are healthy.
    `control` is what the canary is compared with at 100 %.
    `approvals` is how many distinct people must approve before any traffic moves; `notify` names channels
    of the worker's settings that hear of the release.
    """

    stages: tuple[Stage, ...] = Field(
        default=(Stage(weight=5), Stage(weight=25), Stage(weight=50), Stage(weight=100)),
        min_length=1,
        max_length=MAX_STAGES,
    )
    window: Duration = timedelta(minutes=10)
    interval: PositiveDuration = timedelta(seconds=10)
    max_window: Duration = timedelta(hours=1)
    min_samples: int = Field(default=200, ge=0)
    on_inconclusive: OnInconclusive = OnInconclusive.HOLD
    approvals: int = Field(default=0, ge=0, le=MAX_APPROVALS)
    gates: tuple[Gate, ...] = Field(default=DEFAULT_GATES, min_length=1)
    sticky: Sticky = Sticky.NONE
    control: Control = Control.MIRROR
    promotion: Promotion = Promotion.IDLE_SWAP
    wave: int = Field(default=1, ge=1, le=MAX_WAVE)
    on_partial: OnPartial = OnPartial.PROPORTIONAL
    retain: Duration = timedelta(minutes=30)
    load_deadline: PositiveDuration = timedelta(minutes=30)
    canary_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    notify: tuple[Name, ...] = Field(default=(), max_length=MAX_CHANNELS)

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, value: object) -> object:
        """Resolve `preset`, and accept `stages: [5, 25, 50, 100]` as well as objects."""
        if isinstance(value, dict) and "preset" in value:
            value = from_preset(value)
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

    def split(self, percent: int) -> TrafficSplit:
        """Return the split that gives `percent` of the requests to the canary."""
        return TrafficSplit.with_canary(percent, sticky=self.sticky is Sticky.USER)

    def stage_split(self, stage: ResolvedStage, control: Control) -> TrafficSplit:
        """Return the split of a stage; one that is not judged needs nothing to compare with."""
        split = self.split(stage.weight)
        return with_control(split, control) if stage.max_window else split

    def resolved_stages(self) -> tuple[ResolvedStage, ...]:
        """Return every stage with the plan's defaults filled in."""
        return tuple(_resolve(self, stage) for stage in self.stages)

    def required_approvals(self) -> tuple[tuple[int, int], ...]:
        """Return (weight, people who must approve before its traffic is written) for every stage."""
        return tuple(
            (stage.weight, max(stage.approvals, 0 if number else self.approvals))
            for number, stage in enumerate(self.stages)
        )


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
    in_place = plan.promotion is Promotion.IN_PLACE
    if in_place and weights[-1] == 100:
        found.append("stages: with promotion in-place stable keeps traffic, so the last weight is below 100")
    if not in_place and weights[-1] != 100:
        found.append(f"stages: the last weight must be 100, got {weights[-1]}")
    if plan.interval < timedelta(milliseconds=200):
        found.append("interval: at least 200ms")
    if len(set(plan.notify)) != len(plan.notify):
        found.append("notify: a channel is named twice")
    if plan.max_window < plan.window:
        found.append("max_window: shorter than window")
    for number, stage in enumerate(plan.resolved_stages(), start=1):
        absolute = [gate for gate in stage.gates if gate.is_absolute]
        if all(gate.metric is Metric.DEVICE_MEMORY for gate in absolute):
            found.append(f"stage {number}: needs at least one absolute gate on requests (`maximum`)")
        names = [gate.name for gate in stage.gates]
        if len(set(names)) != len(names):
            found.append(f"stage {number}: a gate is declared twice")
    return found
