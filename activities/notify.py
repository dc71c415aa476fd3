"""The activity that tells people. It only ever tells: no release waits for it, and none fails with it."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import application_errors
from activities.incidents import count_undelivered
from activities.options import NOTIFY
from weightshift.contracts.notification import Notification
from weightshift.errors import NotificationUndelivered, UnknownChannel


class Channel(Protocol):
    """Somewhere notifications go."""

    async def deliver(self, notification: Notification) -> None:
        """Deliver once. Raises `NotificationUndelivered`, and `NotificationRefused`, which is final."""


class NotifyActivities:
    """Delivers notifications to the channels of the worker's settings."""

    def __init__(self, *, channels: Mapping[str, Channel]) -> None:
        self._channels = channels

    @activity.defn(name=NOTIFY.name)
    async def send(self, notification: Notification) -> None:
        """Deliver one notification; a failure is counted, and repeated by the activity's retries."""
        try:
            with application_errors():
                channel = self._channels.get(notification.channel)
                if channel is None:
                    raise UnknownChannel(
                        f"notify: this worker has no channel {notification.channel} any more; add it to its "
                        "settings"
                    )
                await channel.deliver(notification)
        except ApplicationError as failure:
            count_undelivered(notification.channel)
            raise _not_before(failure) from failure.cause


def _not_before(failure: ApplicationError) -> ApplicationError:
    """Let the next attempt wait as long as the receiver asked for."""
    cause = failure.cause
    if not isinstance(cause, NotificationUndelivered) or cause.retry_after is None:
        return failure
    return ApplicationError(
        failure.message, type=failure.type, next_retry_delay=timedelta(seconds=cause.retry_after)
    )
