"""How a route divides its requests between the two cohorts."""

from typing import Self

from pydantic import Field, model_validator

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Cohort, Fence


class TrafficSplit(Message):
    """Percentages per cohort; whole numbers that sum to 100."""

    stable: int = Field(ge=0, le=100, strict=True)
    canary: int = Field(ge=0, le=100, strict=True)

    @model_validator(mode="after")
    def _sums_to_hundred(self) -> Self:
        if self.stable + self.canary != 100:
            raise ValueError(f"weights sum to {self.stable + self.canary}, not 100")
        return self

    @classmethod
    def with_canary(cls, percent: int) -> "TrafficSplit":
        """Give `percent` of the requests to the canary and the rest to stable."""
        return cls(stable=100 - percent, canary=percent)

    @classmethod
    def all_to(cls, cohort: Cohort) -> "TrafficSplit":
        """Give every request to one cohort: the only kind of split a release may end on."""
        return cls.with_canary(100 if cohort is Cohort.CANARY else 0)

    @property
    def is_terminal(self) -> bool:
        """Whether one cohort carries everything."""
        return self.canary in (0, 100)

    def __str__(self) -> str:
        return f"{self.stable}/{self.canary}"


class MeshState(Message):
    """What the mesh itself says it does, read back from the data plane, never from memory."""

    split: TrafficSplit
    fence: Fence | None = None
