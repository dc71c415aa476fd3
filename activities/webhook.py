"""Notifications as HTTP requests: plain JSON that is signed, or the form that Slack and its kin read.

Where they go comes from the worker's settings alone: nothing that a release carries can name an address,
and redirects are not followed.
"""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from pydantic import TypeAdapter, ValidationError
from pydantic_settings import SettingsError

from weightshift.contracts.base import Name, describe_problems
from weightshift.contracts.notification import Notification, NotificationEvent
from weightshift.errors import InvalidInput, NotificationRefused, NotificationUndelivered
from weightshift.settings import ChannelForm, ChannelSettings, NotifySettings

TIMESTAMP_HEADER = "x-weightshift-timestamp"
SIGNATURE_HEADER = "x-weightshift-signature"
DELIVERY_HEADER = "x-weightshift-delivery"

_CHANNELS = TypeAdapter(dict[Name, ChannelSettings])
_VERSION = "v1"
_LONGEST_RETRY_AFTER = 60.0
_WORTH_ANOTHER_TRY = (408, 425, 429)
_SIGNS = {
    NotificationEvent.START: "started",
    NotificationEvent.STAGE: "moved on",
    NotificationEvent.HOLD: "waits",
    NotificationEvent.ROLLBACK: "is rolling back",
    NotificationEvent.END: "ended",
}


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return `v1=` and the HMAC-SHA256, in hexadecimal, of the timestamp, a full stop and the body."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"{_VERSION}={digest}"


def content(notification: Notification, form: ChannelForm) -> bytes:
    """Return the body of a request in a channel's form."""
    if form is ChannelForm.SLACK:
        return json.dumps({"text": _slack_text(notification)}).encode()
    return notification.model_dump_json().encode()


def _slack_text(notification: Notification) -> str:
    """Return a message in Slack's markup, in which what people wrote can neither link nor mention."""
    traffic = f"stable/canary {notification.split}" if notification.split else "untouched"
    what = notification.outcome or _SIGNS[notification.event]
    if notification.event is NotificationEvent.END:
        what = f"{what}, and the release is over"  # a promotion is told twice: once traffic is there, and now
    lines = (
        f"*{notification.artifact_id}* to *{notification.service}* {what}",
        _escaped(notification.text),
        f"traffic {traffic}, way back: {_escaped(notification.way_back)}",
        f"by {_escaped(notification.operator)}, release `{_escaped(notification.release_id)}`",
    )
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def channel_settings() -> NotifySettings:
    """Read the settings from the environment. Raises `InvalidInput` that repeats nothing of them."""
    try:
        return NotifySettings()
    except ValidationError as error:
        raise InvalidInput(f"WEIGHTSHIFT_NOTIFY: {describe_problems(error)}.") from None
    except SettingsError:
        raise InvalidInput("WEIGHTSHIFT_NOTIFY_CHANNELS is not JSON; see docs/notifications.md.") from None


def open_channels(settings: NotifySettings, client: httpx.AsyncClient) -> dict[str, "Webhook"]:
    """Return every channel of the settings and their file. Raises `InvalidInput` without what is secret."""
    named = dict(settings.channels)
    if settings.channels_file is not None:
        for name, channel in _read(settings.channels_file).items():
            if name in named:
                raise InvalidInput(f"notify: channel {name} is set twice; keep it in channels_file.")
            named[name] = channel
    return {
        name: Webhook(name=name, settings=channel, client=client, timeout=settings.timeout)
        for name, channel in named.items()
    }


def _read(path: Path) -> dict[str, ChannelSettings]:
    try:
        return _CHANNELS.validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"notify: channels_file {path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise InvalidInput(f"notify: channels_file {path}: {describe_problems(error)}.") from None


class Webhook:
    """One channel. Errors name the channel, never its address: that of a Slack channel is a secret."""

    def __init__(
        self,
        *,
        name: str,
        settings: ChannelSettings,
        client: httpx.AsyncClient,
        timeout: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._settings = settings
        self._client = client
        self._timeout = timeout
        self._clock = clock

    async def deliver(self, notification: Notification) -> None:
        """Send one request. Raises `NotificationUndelivered`, and `NotificationRefused`, which is final."""
        body = content(notification, self._settings.form)
        try:
            # httpx bounds each read; this bounds the whole, a receiver that dribbles included.
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream(
                    "POST",
                    self._settings.url.get_secret_value(),
                    content=body,
                    headers=self._headers(notification, body),
                    follow_redirects=False,
                ) as response,
            ):
                status, retry_after = response.status_code, response.headers.get("retry-after")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            # Without the cause, which may spell the address and would be kept in Temporal's history.
            raise NotificationUndelivered(
                f"notify: channel {self._name} does not answer ({type(error).__name__})"
            ) from None
        self._check(status, retry_after)

    def _headers(self, notification: Notification, body: bytes) -> dict[str, str]:
        headers = {"content-type": "application/json", DELIVERY_HEADER: notification.notification_id}
        if secret := self._settings.secret.get_secret_value():
            timestamp = str(int(self._clock()))
            headers[TIMESTAMP_HEADER] = timestamp
            headers[SIGNATURE_HEADER] = signature(secret, timestamp, body)
        return headers

    def _check(self, status: int, retry_after: str | None) -> None:
        if 200 <= status < 300:
            return
        problem = f"notify: channel {self._name} answered {status}"
        if status in _WORTH_ANOTHER_TRY or status >= 500:
            raise NotificationUndelivered(problem, retry_after=_seconds(retry_after))
        raise NotificationRefused(f"{problem}; check the channel in the worker's settings")


def _seconds(retry_after: str | None) -> float | None:
    """Return how long to wait, as far as that is reasonable; a date is not understood."""
    try:
        return min(max(float(retry_after or ""), 0.0), _LONGEST_RETRY_AFTER)
    except ValueError:
        return None
