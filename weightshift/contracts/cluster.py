"""What a cluster knows of a cohort's pods."""

from weightshift.contracts.base import Message


class Pool(Message):
    """The pods of one cohort: how many there should be, and how many are ready.

    `routed` and `unrouted` count the addresses behind the cohort's Service that get requests and those that
    do not; None where nobody looks.
    """

    wanted: int
    ready: int
    routed: int | None = None
    unrouted: int | None = None

    def shortfall(self, instances: int) -> str | None:
        """Return why so many instances cannot take traffic, as far as the cluster knows, or None."""
        if self.ready < instances:
            return f"{self.ready} of {instances} pods are ready"
        if self.routed is not None and self.routed < instances:
            return f"the Service routes to {self.routed} of {instances} pods"
        return None

    def __str__(self) -> str:
        routed = "" if self.routed is None else f", {self.routed} get requests, {self.unrouted} do not"
        return f"{self.ready} of {self.wanted} pods ready{routed}"
