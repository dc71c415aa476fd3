"""What holds in the history of every release, whatever happened in it. Pure, over recorded events."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from weightshift.contracts.identity import Fence
from weightshift.contracts.traffic import TrafficSplit

_FAILED = (
    "activity_task_failed_event_attributes",
    "activity_task_timed_out_event_attributes",
    "activity_task_canceled_event_attributes",
)


@dataclass(frozen=True)
class Command:
    """One activity of a release: what it was asked, and when and how it ended."""

    name: str
    asked: Any
    scheduled_at: datetime
    scheduled_id: int
    answered_at: datetime | None = None
    answered_id: int = 0
    answer: Any = None
    is_over: bool = False

    @property
    def split(self) -> TrafficSplit:
        """The split that a mesh write asks for."""
        return TrafficSplit.model_validate(self.asked["split"])

    @property
    def fence(self) -> Fence:
        """The fence that a mesh write carries."""
        return Fence.model_validate(self.asked["fence"])


@dataclass(frozen=True)
class Intent:
    """A message that a release accepted, or its cancellation."""

    name: str
    event_id: int


def commands(events: Sequence[HistoryEvent]) -> list[Command]:
    """Return every activity of a history, oldest first."""
    found: dict[int, Command] = {}
    for event in events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            asked = json.loads(scheduled.input.payloads[0].data)
            found[event.event_id] = Command(scheduled.activity_type.name, asked, _time(event), event.event_id)
        elif event.HasField("activity_task_completed_event_attributes"):
            completed = event.activity_task_completed_event_attributes
            place = completed.scheduled_event_id
            found[place] = replace(
                found[place],
                answered_at=_time(event),
                answered_id=event.event_id,
                answer=json.loads(completed.result.payloads[0].data or b"null"),
                is_over=True,
            )
        else:
            for field in _FAILED:
                if event.HasField(field):  # type: ignore[arg-type]
                    place = getattr(event, field).scheduled_event_id
                    found[place] = replace(found[place], is_over=True)
    return list(found.values())


def is_thinking(events: Sequence[HistoryEvent]) -> bool:
    """Whether the workflow has something to react to and did not yet."""
    due = False
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED:
            due = True
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            due = False
    return due


def has_open_timer(events: Sequence[HistoryEvent]) -> bool:
    """Whether a timer is running."""
    started: set[int] = set()
    for event in events:
        if event.HasField("timer_started_event_attributes"):
            started.add(event.event_id)
        elif event.HasField("timer_fired_event_attributes"):
            started.discard(event.timer_fired_event_attributes.started_event_id)
        elif event.HasField("timer_canceled_event_attributes"):
            started.discard(event.timer_canceled_event_attributes.started_event_id)
    return bool(started)


def intents(events: Sequence[HistoryEvent]) -> Iterator[Intent]:
    """Yield the messages of a history, oldest first."""
    for event in events:
        if event.HasField("workflow_execution_signaled_event_attributes"):
            yield Intent(event.workflow_execution_signaled_event_attributes.signal_name, event.event_id)
        elif event.HasField("workflow_execution_update_accepted_event_attributes"):
            accepted = event.workflow_execution_update_accepted_event_attributes
            yield Intent(accepted.accepted_request.input.name, event.event_id)
        elif event.HasField("workflow_execution_cancel_requested_event_attributes"):
            yield Intent("cancel", event.event_id)


def breaches(events: Sequence[HistoryEvent]) -> list[Command]:
    """Return the judgements that found a breach."""
    return [one for one in commands(events) if one.name == "metrics.observe" and _is(one, "breach")]


def broken_rules(events: Sequence[HistoryEvent], *, window: timedelta) -> list[str]:
    """Return every rule of a release that its history breaks, in words; empty when none is."""
    writes = [command for command in commands(events) if command.name == "mesh.write"]
    judged = [command for command in commands(events) if command.name == "metrics.observe"]
    said = list(intents(events))
    return [
        *_fences_rise(writes),
        *_rises_are_earned(writes, judged, said, window),
        *_nothing_rises_after_a_rollback(writes, judged, said),
    ]


def _fences_rise(writes: Sequence[Command]) -> Iterator[str]:
    for before, after in itertools.pairwise(writes):
        if not before.fence < after.fence:
            yield f"the write of {after.split} has fence {after.fence}, after {before.fence}"


def _rises_are_earned(
    writes: Sequence[Command], judged: Sequence[Command], said: Sequence[Intent], window: timedelta
) -> Iterator[str]:
    """A larger share needs the share before judged healthy over its whole window, or a person's word."""
    for before, after in itertools.pairwise(writes):
        if before.split.canary == 0 or after.split.canary <= before.split.canary:
            continue
        between = range(before.answered_id, after.scheduled_id)
        if any(one.name == "promote" and one.event_id in between for one in said):
            continue
        if not any(_is(one, "healthy") and one.answered_id in between for one in judged):
            yield f"{after.split} was written although {before.split} was never judged healthy"
        if before.answered_at is None or after.scheduled_at - before.answered_at < window:
            yield f"{before.split} was observed for less than {window}"


def _nothing_rises_after_a_rollback(
    writes: Sequence[Command], judged: Sequence[Command], said: Sequence[Intent]
) -> Iterator[str]:
    causes = [one.event_id for one in said if one.name in ("rollback", "cancel")]
    causes += [one.answered_id for one in judged if _is(one, "breach")]
    if not causes:
        return
    for write in writes:
        if write.scheduled_id > min(causes) and not write.split.is_terminal:
            yield f"{write.split} was written after the release had turned back"


def _is(judged: Command, outcome: str) -> bool:
    return judged.answer is not None and judged.answer["verdict"]["outcome"] == outcome


def _time(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime()
