"""Who is meant: cohorts, routes and the fence that orders commands."""

from enum import StrEnum

from weightshift.contracts.base import Count, Message, Name

_ABOVE_ALL = 1 << 40


class Cohort(StrEnum):
    """The two pools of instances that serve one model in one environment."""

    STABLE = "stable"
    CANARY = "canary"

    @property
    def other(self) -> "Cohort":
        """The pool on the other side of the split."""
        return Cohort.CANARY if self is Cohort.STABLE else Cohort.STABLE


class Service(Message):
    """One model in one environment: the unit that is released, routed and locked."""

    model: Name
    environment: Name

    @property
    def workflow_id(self) -> str:
        """The id that lets only one release of the service run."""
        return f"release:{self.environment}:{self.model}"

    def __str__(self) -> str:
        return f"{self.environment}/{self.model}"


class Fence(Message):
    """Orders commands: `epoch` per admitted release, `sequence` per command in it.

    Whatever is written to a mesh, a target or a runtime carries one, and each of them refuses a
    fence older than the newest it has seen. Never compared with a revision.
    """

    epoch: Count
    sequence: Count

    @classmethod
    def above_all(cls, epoch: int) -> "Fence":
        """Return the fence that no command of this epoch's release can overtake: for emergencies."""
        return cls(epoch=epoch, sequence=_ABOVE_ALL)

    def __lt__(self, other: "Fence") -> bool:
        return (self.epoch, self.sequence) < (other.epoch, other.sequence)

    def __str__(self) -> str:
        emergencies = self.sequence - _ABOVE_ALL
        if emergencies < 0:
            return f"{self.epoch}.{self.sequence}"
        return f"{self.epoch}.break-glass" + (f"+{emergencies}" if emergencies else "")
