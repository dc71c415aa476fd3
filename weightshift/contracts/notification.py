"""What people hear of a release while it runs, through channels that the worker's settings define."""

from datetime import datetime
from enum import StrEnum

from weightshift.contracts.base import Message, Name
from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome
from weightshift.contracts.traffic import TrafficSplit


class NotificationEvent(StrEnum):
    """What happened: the release began, a stage got its traffic, it waits, it turns back, it is over."""

    START = "start"
    STAGE = "stage"
    HOLD = "hold"
    ROLLBACK = "rollback"
    END = "end"


class Notification(Message):
    """One event of a release for one channel.

    `notification_id` is the same in every attempt, so that a receiver can drop a repeat; `sequence` rises
    within the release, since notifications may overtake each other.
    """

    notification_id: str
    sequence: int
    channel: Name
    event: NotificationEvent
    at: datetime
    release_id: str
    service: Service
    artifact_id: Name
    operator: str
    text: str
    split: TrafficSplit | None = None
    outcome: Outcome | None = None
    way_back: str = "none"
