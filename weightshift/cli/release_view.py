"""How a release looks to people. Pure: status in, text out."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weightshift.contracts.release import Outcome, ReleasePhase, ReleaseRecord, ReleaseStatus, Step
from weightshift.errors import ReleaseTerminated, WeightshiftError

EXIT_CODES = {Outcome.PROMOTED: 0, Outcome.ROLLED_BACK: 3, Outcome.REFUSED: 3, Outcome.ABANDONED: 1}
EXIT_CODE_HELD = 6
_COLOURS = {
    Outcome.PROMOTED: "green",
    Outcome.ROLLED_BACK: "yellow",
    Outcome.REFUSED: "red",
    Outcome.ABANDONED: "red",
}
_RECENT_STEPS = 12
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
_SAME_WORDS = timedelta(minutes=1)


class StepLog:
    """Remembers which steps of a release were shown."""

    def __init__(self) -> None:
        self._shown: set[Step] = set()

    def new_lines(self, status: ReleaseStatus) -> list[str]:
        """Return a line for each step that no earlier status had."""
        steps = [step for step in status.steps if step not in self._shown]
        self._shown.update(steps)
        return [step_line(step) for step in steps]


class JudgingLog:
    """Remembers what the judge of a stage was shown to say: its figures alone change every interval."""

    def __init__(self) -> None:
        self._words = ""
        self._shown: tuple[str, datetime] | None = None

    def new_line(self, status: ReleaseStatus, now: datetime) -> str | None:
        """Return a line when the judge says something else, and once a minute what its figures are now."""
        text = f"{status.stage_weight} %: judging: {status.judging}"
        words = _FIGURE.sub("", text)
        if not status.judging or (words == self._words and self._is_recent(text, now)):
            return None
        self._words, self._shown = words, (text, now)
        return step_line(Step(at=now, text=text))

    def _is_recent(self, text: str, now: datetime) -> bool:
        return self._shown is not None and (text == self._shown[0] or now - self._shown[1] < _SAME_WORDS)


def step_line(step: Step) -> str:
    """Return one line of the story, with the local time."""
    return f"{step.at.astimezone():%H:%M:%S}  {step.text}"


def headline(status: ReleaseStatus) -> str:
    """Return the release in one line."""
    state = status.outcome or status.phase
    reason = f": {status.reason}" if status.reason else ""
    paused = ", paused" if status.paused and status.outcome is None else ""
    waiting = f", waiting for {status.waiting_for}" if status.waiting_for else ""
    return f"{status.service} {status.artifact_id} {state}{paused}{waiting}{reason}"


def ended_otherwise(status: ReleaseStatus, problem: WeightshiftError) -> ReleaseStatus:
    """Return the status of a release that can say no more: it was refused at admission, or terminated.

    A terminated one stays in the phase that it was in.
    """
    if isinstance(problem, ReleaseTerminated):
        changes = {"outcome": Outcome.ABANDONED, "held": False, "paused": False, "waiting_for": ""}
    else:
        changes = {"outcome": Outcome.REFUSED, "phase": ReleasePhase.DONE}
    return status.model_copy(update={**changes, "reason": str(problem)})


def with_refused(
    records: Sequence[ReleaseRecord], refused: Sequence[ReleaseRecord]
) -> tuple[ReleaseRecord, ...]:
    """Return the registry's releases and those that it never admitted, newest first."""
    known = {record.release_id for record in records}
    others = [record for record in refused if record.release_id not in known]
    return tuple(sorted((*records, *others), key=lambda record: record.started_at, reverse=True))


def describe(status: ReleaseStatus) -> RenderableType:
    """Return everything a status says, for a terminal."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    for name, value in _facts(status):
        facts.add_row(name, value)
    steps = [Text(step_line(step), style="dim") for step in status.steps[-_RECENT_STEPS:]]
    return Group(facts, *steps)


def _facts(status: ReleaseStatus) -> list[tuple[str, Text]]:
    observing = status.phase is ReleasePhase.OBSERVING and status.stage_weight is not None
    stage = f" {status.stage_weight} %" if observing else ""
    facts = [
        ("release", Text(f"{status.release_id}  {status.service}  {status.artifact_id}")),
        (
            "phase",
            Text(
                f"{status.phase}{stage}{', held' if status.held else ''}{', paused' if status.paused else ''}"
                f"{', terminated' if status.outcome is Outcome.ABANDONED else ''}"
            ),
        ),
        ("traffic", Text("not read yet" if status.split is None else _split_bar(status))),
        ("way back", Text(_way_back(status))),
    ]
    if status.waiting_for:
        facts.append(("waiting for", Text(status.waiting_for)))
    if status.judging:
        facts.append(("judging", Text(status.judging)))
    if status.verdict is not None:
        facts.append(("verdict", Text(f"{status.verdict.outcome}: {status.verdict.reason}")))
        facts += [
            ("", Text(f"{gate.gate}: {gate.verdict} {gate.detail}", style="dim"))
            for gate in status.verdict.gates
        ]
    if status.outcome is not None:
        facts.append(("outcome", Text(headline(status), style=_COLOURS[status.outcome])))
    elif status.reason:
        facts.append(("reason", Text(status.reason)))
    return facts


def _way_back(status: ReleaseStatus) -> str:
    """Return what going back would cost; a release that was taken back has nothing left to go back from."""
    if status.outcome in (Outcome.ROLLED_BACK, Outcome.REFUSED):
        return "none needed: what served before serves"
    if status.outcome is Outcome.ABANDONED:
        return f"weightshift release rollback {status.service.model} -e {status.service.environment}"
    if status.way_back_until is not None:
        return f"{status.way_back}, until {status.way_back_until.astimezone():%Y-%m-%d %H:%M:%S}"
    return status.way_back


def _split_bar(status: ReleaseStatus) -> str:
    canary = 0 if status.split is None else status.split.canary
    filled = round(canary / 5)
    since = ", as last read back" if status.outcome is Outcome.ABANDONED else ""
    return f"canary {'#' * filled}{'.' * (20 - filled)} {canary} %{since}"


def next_step(status: ReleaseStatus) -> str:
    """Say what a person can do about a held release."""
    where = f"{status.service.model} -e {status.service.environment}"
    if status.phase is ReleasePhase.AWAITING_APPROVAL:
        return f"next: weightshift release approve {where}, then watch; or rollback"
    return f"next: wait for evidence, weightshift release promote {where}, or rollback"


def record_rows(records: Sequence[ReleaseRecord]) -> list[tuple[object, ...]]:
    """Return a table row for each recorded release."""
    return [
        (
            record.release_id,
            record.artifact_id,
            record.outcome or "active",
            record.operator,
            record.started_at.isoformat(timespec="seconds"),
            record.finished_at and record.finished_at.isoformat(timespec="seconds"),
            record.reason,
        )
        for record in records
    ]
