"""One delivery to a real receiver: what is sent, who could have sent it, and what every answer means."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr, ValidationError

from activities.webhook import Webhook, open_channels
from tests.workflow.receiver import Receiver, receiving
from weightshift.contracts.identity import Service
from weightshift.contracts.notification import Notification, NotificationEvent
from weightshift.contracts.release import Outcome
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import InvalidInput, NotificationRefused, NotificationUndelivered
from weightshift.local.ports import free_ports
from weightshift.settings import ChannelForm, ChannelSettings, NotifySettings

SECRET = "correct horse battery staple"
NOW = 1_767_323_045.9
NOTIFICATION = Notification(
    notification_id="R1:notice:3",
    sequence=3,
    channel="releases",
    event=NotificationEvent.ROLLBACK,
    at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    release_id="R1",
    service=Service(model="ranker", environment="prod"),
    artifact_id="v2",
    operator="ada",
    text="gate p99 ratio 1.1 breached",
    split=TrafficSplit.with_canary(25),
    way_back="instant",
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as one:
        yield one


def webhook(url: str, client: httpx.AsyncClient, *, timeout: float = 5.0, **changes: object) -> Webhook:
    settings = ChannelSettings(url=SecretStr(url), secret=SecretStr(SECRET)).model_copy(update=changes)
    return Webhook(name="releases", settings=settings, client=client, timeout=timeout, clock=lambda: NOW)


def is_genuine(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """The verification as the documentation tells receivers to do it."""
    signed = headers["x-weightshift-timestamp"].encode() + b"." + body
    expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, headers["x-weightshift-signature"])


async def test_the_document_is_signed_with_its_time(receiver: Receiver, client: httpx.AsyncClient) -> None:
    await webhook(f"{receiver.url}/hook", client).deliver(NOTIFICATION)
    (got,) = receiver.received
    assert (got.path, got.headers["content-type"]) == ("/hook", "application/json")
    assert Notification.model_validate_json(got.body) == NOTIFICATION
    assert got.headers["x-weightshift-delivery"] == "R1:notice:3"
    assert got.headers["x-weightshift-timestamp"] == str(int(NOW))
    assert is_genuine(SECRET, got.headers, got.body)
    assert not is_genuine("another secret of that length", got.headers, got.body)
    assert not is_genuine(SECRET, got.headers, got.body.replace(b"ada", b"eve"))
    later = {**got.headers, "x-weightshift-timestamp": str(int(NOW) + 1)}
    assert not is_genuine(SECRET, later, got.body)


async def test_slack_gets_a_text_in_which_nobody_can_link_or_mention(
    receiver: Receiver, client: httpx.AsyncClient
) -> None:
    hostile = NOTIFICATION.model_copy(
        update={"text": "<!channel> a & b", "operator": "<@U1>", "outcome": Outcome.ROLLED_BACK}
    )
    await webhook(receiver.url, client, form=ChannelForm.SLACK).deliver(hostile)
    (got,) = receiver.received
    assert set(got.document) == {"text"}
    text = got.document["text"]
    assert text.startswith("*v2* to *prod/ranker* rolled-back\n&lt;!channel&gt; a &amp; b\n")
    assert "traffic stable/canary 75/25" in text
    assert "by &lt;@U1&gt;" in text


async def test_slack_tells_a_promotion_from_the_end_that_follows(
    receiver: Receiver, client: httpx.AsyncClient
) -> None:
    channel = webhook(receiver.url, client, form=ChannelForm.SLACK)
    for event in (NotificationEvent.STAGE, NotificationEvent.END):
        await channel.deliver(NOTIFICATION.model_copy(update={"event": event, "outcome": Outcome.PROMOTED}))
    first, last = (got.document["text"].splitlines()[0] for got in receiver.received)
    assert first == "*v2* to *prod/ranker* promoted"
    assert last == "*v2* to *prod/ranker* promoted, and the release is over"


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_a_receiver_in_trouble_is_worth_another_try(
    receiver: Receiver, client: httpx.AsyncClient, status: int
) -> None:
    receiver.answers = [(status, {"retry-after": "7"})]
    with pytest.raises(NotificationUndelivered, match=f"channel releases answered {status}") as caught:
        await webhook(receiver.url, client).deliver(NOTIFICATION)
    assert caught.value.retry_after == 7.0


@pytest.mark.parametrize(("asked", "granted"), [("86400", 60.0), ("-5", 0.0), ("tomorrow", None), ("", None)])
async def test_nobody_can_make_a_notice_wait_for_ever(
    receiver: Receiver, client: httpx.AsyncClient, asked: str, granted: float | None
) -> None:
    receiver.answers = [(503, {"retry-after": asked})]
    with pytest.raises(NotificationUndelivered) as caught:
        await webhook(receiver.url, client).deliver(NOTIFICATION)
    assert caught.value.retry_after == granted


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410])
async def test_what_the_receiver_will_never_take_is_final(
    receiver: Receiver, client: httpx.AsyncClient, status: int
) -> None:
    receiver.answers = [(status, {})]
    with pytest.raises(NotificationRefused, match=f"answered {status}; check the channel"):
        await webhook(receiver.url, client).deliver(NOTIFICATION)


async def test_a_redirect_is_not_followed(receiver: Receiver, client: httpx.AsyncClient) -> None:
    with receiving() as internal:
        receiver.answers = [(307, {"location": f"{internal.url}/latest/meta-data"})]
        with pytest.raises(NotificationRefused):
            await webhook(receiver.url, client).deliver(NOTIFICATION)
        assert internal.received == []


async def test_a_receiver_that_hangs_is_given_up(receiver: Receiver, client: httpx.AsyncClient) -> None:
    receiver.hangs.set()
    with pytest.raises(NotificationUndelivered, match="does not answer"):
        await webhook(receiver.url, client, timeout=0.1).deliver(NOTIFICATION)


async def test_an_address_that_is_a_secret_is_never_spelt(client: httpx.AsyncClient) -> None:
    (port,) = free_ports(1)
    with pytest.raises(NotificationUndelivered, match="channel releases does not answer") as caught:
        await webhook(f"http://127.0.0.1:{port}/services/T000/B000/XXXX", client).deliver(NOTIFICATION)
    assert "XXXX" not in repr(caught.value)
    assert caught.value.__cause__ is None, "its text would be kept in the history"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://hooks.example.com/x",
        "ftp://hooks.example.com/x",
        "https://user:password@hooks.example.com/x",
        "hooks.example.com/x",
        "file:///etc/passwd",
    ],
)
def test_an_address_that_is_not_safe_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ChannelSettings(url=SecretStr(url), secret=SecretStr(SECRET))
    assert url not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_json_channel_needs_a_secret_and_a_slack_channel_does_not() -> None:
    with pytest.raises(ValidationError, match="secret"):
        ChannelSettings(url=SecretStr("https://hooks.example.com/x"))
    ChannelSettings(url=SecretStr("https://hooks.example.com/x"), form=ChannelForm.SLACK)


def document(**channels: object) -> str:
    return json.dumps(channels)


async def test_channels_come_from_the_environment_and_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    file = tmp_path / "channels.json"
    file.write_text(document(releases={"url": "https://hooks.example.com/x", "secret": SECRET}))
    oncall = {"url": "https://hooks.example.com/y", "form": "slack"}
    monkeypatch.setenv("WEIGHTSHIFT_NOTIFY_CHANNELS", document(oncall=oncall))
    monkeypatch.setenv("WEIGHTSHIFT_NOTIFY_CHANNELS_FILE", str(file))
    settings = NotifySettings()
    assert sorted(open_channels(settings, client)) == ["oncall", "releases"]
    assert "example.com" not in repr(settings)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (document(oncall={"url": "https://hooks.example.com/x", "form": "slack"}), "oncall is set twice"),
        (document(releases={"url": "http://hooks.example.com/hidden"}), "releases.url"),
        ('{"releases": {"url": "https://hooks.example.com/hidden"', "channels.json: Invalid JSON"),
    ],
)
async def test_a_file_that_is_wrong_is_named_without_its_content(
    tmp_path: Path, client: httpx.AsyncClient, content: str, problem: str
) -> None:
    file = tmp_path / "channels.json"
    file.write_text(content)
    oncall = ChannelSettings(url=SecretStr("https://hooks.example.com/y"), form=ChannelForm.SLACK)
    settings = NotifySettings(channels={"oncall": oncall}, channels_file=file)
    with pytest.raises(InvalidInput, match=problem) as caught:
        open_channels(settings, client)
    assert "hidden" not in str(caught.value)


async def test_a_file_that_is_not_there_is_named(tmp_path: Path, client: httpx.AsyncClient) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        open_channels(NotifySettings(channels_file=tmp_path / "absent.json"), client)
