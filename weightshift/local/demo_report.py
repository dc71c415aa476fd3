"""What the demonstration reports at its end. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from weightshift.contracts.base import Message
from weightshift.contracts.release import Outcome

_TITLES = {
    Outcome.PROMOTED: "promoted",
    Outcome.ROLLED_BACK: "rolled back",
    Outcome.REFUSED: "refused",
    Outcome.ABANDONED: "abandoned",
}


_QUANTILES = ("p50_ms", "p99_ms")


class DemoRelease(Message):
    """One release of the demonstration: what was announced, and what happened, in `seconds`.

    `because` is what the reason has to hold: a rollback for another cause is not the one announced.
    """

    artifact_id: str
    announced: Outcome
    outcome: Outcome | None
    reason: str
    seconds: float
    because: str = ""

    @property
    def as_announced(self) -> bool:
        """Whether the release ended as it should, for the reason it should."""
        return self.outcome is self.announced and self.because in self.reason


class DemoFigures(Message):
    """All figures of a run. `traffic` is the last line of the load generator.

    `rollback_ms` runs from the rollback signal to the mesh's read-back of 0 % canary; None when it
    never came to that.
    """

    releases: tuple[DemoRelease, ...]
    traffic: dict[str, Any]
    rollback_ms: float | None
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no request was lost and every release ended as announced."""
        no_request_lost = self.traffic["failed"] == 0 and self.traffic["misrouted"] == 0
        as_announced = all(release.as_announced for release in self.releases)
        return no_request_lost and as_announced and self.rollback_ms is not None

    def summary(self) -> dict[str, int | None]:
        """Return the figures of the last line."""
        outcomes = [release.outcome for release in self.releases]
        return {
            "requests": self.traffic["requests"],
            "failed": self.traffic["failed"],
            "misrouted": self.traffic["misrouted"],
            "promoted": outcomes.count(Outcome.PROMOTED),
            "rolled_back": outcomes.count(Outcome.ROLLED_BACK),
            "refused": outcomes.count(Outcome.REFUSED),
            "rollback_ms": None if self.rollback_ms is None else round(self.rollback_ms),
            "seconds": round(self.seconds),
        }

    def line(self) -> str:
        """Return the one line that a script can look for."""
        return "demo: " + " ".join(f"{name}={value}" for name, value in self.summary().items())


def describe(release: DemoRelease) -> str:
    """Return a release in one line."""
    ending = _TITLES[release.outcome] if release.outcome else "unfinished"
    return f"{release.artifact_id} {ending} after {release.seconds:.1f} s: {release.reason}"


def report_table(figures: DemoFigures) -> Table:
    """Return one table: a row for each release, with the traffic its artifact answered."""
    table = Table(title="weightshift demo", title_justify="left")
    for column in ("artifact", "outcome", "as announced", "seconds", "requests", "p50 ms", "p99 ms", "why"):
        table.add_column(column, overflow="fold")
    for release in figures.releases:
        table.add_row(
            release.artifact_id,
            _TITLES[release.outcome] if release.outcome else "unfinished",
            "yes" if release.as_announced else f"no, {_TITLES[release.announced]} was",
            f"{release.seconds:.1f}",
            *_traffic_cells(figures.traffic["artifacts"], release.artifact_id),
            release.reason,
        )
    return table


def _traffic_cells(artifacts: Mapping[str, Mapping[str, float]], artifact_id: str) -> Sequence[str]:
    arm = artifacts.get(artifact_id, {})
    return [
        f"{arm.get('requests', 0):,}",
        *(f"{arm[name]:.1f}" if name in arm else "-" for name in _QUANTILES),
    ]
