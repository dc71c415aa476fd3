"""How a route divides its requests between the two cohorts."""

from typing import Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Cohort, Fence

_OPTIONAL = ("mirrored", "sticky")


class TrafficSplit(Message):
    """Percentages per cohort; whole numbers that sum to 100.

    `mirrored` is the percentage of the canary's requests that is copied to stable, whose answers are
    dropped: the control arm while the canary carries everything, and 0 at every other weight. With
    `sticky`, requests that name a user's bucket stay on one cohort while the canary's share grows.
    """

    stable: int = Field(ge=0, le=100, strict=True)
    canary: int = Field(ge=0, le=100, strict=True)
    mirrored: int = Field(default=0, ge=0, le=100, strict=True)
    sticky: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stable + self.canary != 100:
            raise ValueError(f"weights sum to {self.stable + self.canary}, not 100")
        if self.mirrored and self.canary != 100:
            raise ValueError("requests are mirrored only while the canary carries everything")
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what says nothing, so that a plain split reads as it always did."""
        content: dict[str, Any] = dump(self)
        return {name: value for name, value in content.items() if value or name not in _OPTIONAL}

    @classmethod
    def with_canary(cls, percent: int, *, mirrored: int = 0, sticky: bool = False) -> "TrafficSplit":
        """Give `percent` of the requests to the canary and the rest to stable."""
        return cls(stable=100 - percent, canary=percent, mirrored=mirrored, sticky=sticky)

    @classmethod
    def all_to(cls, cohort: Cohort) -> "TrafficSplit":
        """Give every request to one cohort: the only kind of split a release may end on."""
        return cls.with_canary(100 if cohort is Cohort.CANARY else 0)

    @property
    def is_terminal(self) -> bool:
        """Whether one cohort carries everything."""
        return self.canary in (0, 100)

    def __str__(self) -> str:
        mirrored = f", {self.mirrored} % mirrored to stable" if self.mirrored else ""
        return f"{self.stable}/{self.canary}{mirrored}"


class MeshState(Message):
    """What the mesh itself says it does, read back from the data plane, never from memory.

    `drift` says what somebody else changed in the route since the command of `fence`. `confirmed` is
    False where the command was accepted but its data plane did not show it in time.
    """

    split: TrafficSplit
    fence: Fence | None = None
    drift: str | None = None
    confirmed: bool = True

    def obeys(self, other: "MeshState") -> bool:
        """Whether both name the same command: its split and its fence."""
        return (self.split, self.fence) == (other.split, other.fence)

    def __str__(self) -> str:
        return f"{self.split} at fence {self.fence}" if self.fence else f"{self.split} without a fence"
