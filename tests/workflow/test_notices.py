"""People hear of a release through a real receiver, and no release ever waits for one."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio
from pydantic import SecretStr

from activities.webhook import Webhook
from tests.workflow.harness import FAST_PLAN, UNJUDGED_PLAN, Harness
from tests.workflow.receiver import Receiver, receiving
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Outcome, RollbackRequest
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import InvalidPlan
from weightshift.local.ports import free_ports
from weightshift.settings import ChannelSettings

SECRET = "correct horse battery staple"


def told(plan: Plan, *channels: str) -> Plan:
    return plan.model_copy(update={"notify": channels})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def channel(harness: Harness, receiver: Receiver) -> AsyncIterator[str]:
    """A channel of the worker that leads to the receiver."""
    async with httpx.AsyncClient(trust_env=False) as client:
        settings = ChannelSettings(url=SecretStr(receiver.url), secret=SecretStr(SECRET))
        harness.channels["releases"] = Webhook(name="releases", settings=settings, client=client, timeout=0.3)
        yield "releases"


async def test_people_hear_of_every_step(harness: Harness, receiver: Receiver, channel: str) -> None:
    await harness.release("v42", told(FAST_PLAN, channel))
    assert receiver.events() == ["start", *["stage"] * 5, "end"], "four weights, and the promotion"
    documents = sorted((one.document for one in receiver.received), key=lambda one: one["sequence"])
    assert documents[1]["text"] == "5 % of the traffic is on canary"
    assert documents[1]["split"] == {"stable": 95, "canary": 5}
    assert (documents[-1]["outcome"], documents[-1]["text"]) == ("promoted", "v42 serves on stable")
    assert len({one["notification_id"] for one in documents}) == 7


async def test_people_hear_of_a_hold_and_of_a_rollback(
    harness: Harness, receiver: Receiver, channel: str
) -> None:
    harness.observations.outcomes[5] = [StageOutcome.INCONCLUSIVE, StageOutcome.BREACH]
    await harness.release("v42", told(FAST_PLAN, channel))
    assert receiver.events() == ["start", "stage", "hold", "rollback", "end"]
    last = receiver.received[-1].document
    assert (last["outcome"], last["split"]) == ("rolled-back", {"stable": 100, "canary": 0})


async def test_a_receiver_in_trouble_gets_the_same_delivery_again(
    harness: Harness, receiver: Receiver, channel: str
) -> None:
    receiver.answers = [(503, {"retry-after": "1"}), (500, {})]
    await harness.release("v42", told(UNJUDGED_PLAN, channel))
    first = [one for one in receiver.received if one.document["sequence"] == 1]
    assert len(first) > 1
    assert len({one.headers["x-weightshift-delivery"] for one in first}) == 1
    assert receiver.events() == ["start", *["stage"] * 5, "end"]


async def test_a_receiver_that_refuses_is_not_asked_again(
    harness: Harness, receiver: Receiver, channel: str
) -> None:
    receiver.answers = [(404, {})]
    result = await harness.release("v42", told(UNJUDGED_PLAN, channel))
    assert result.outcome is Outcome.PROMOTED
    assert [one.document["sequence"] for one in receiver.received].count(1) == 1


async def test_a_receiver_that_hangs_delays_neither_the_rollback_nor_the_end(
    harness: Harness, receiver: Receiver, channel: str
) -> None:
    harness.observations.blocked.add(25)
    await harness.start("v42", told(FAST_PLAN, channel))
    await harness.until_judging(25)
    receiver.hangs.set()
    before = receiver.answered
    status = await harness.client.rollback(harness.service, RollbackRequest(reason="smells"))
    assert str(status.split) == "100/0"
    assert receiver.answered == before, "nobody was told yet"
    result = await harness.result()
    assert result.outcome is Outcome.ROLLED_BACK
    assert result.rollback_seconds is not None
    assert result.rollback_seconds < 1.0
    assert receiver.answered == before


async def test_a_receiver_that_is_away_changes_no_release(harness: Harness, channel: str) -> None:
    (port,) = free_ports(1)
    settings = ChannelSettings(url=SecretStr(f"http://127.0.0.1:{port}"), secret=SecretStr(SECRET))
    async with httpx.AsyncClient(trust_env=False) as client:
        harness.channels[channel] = Webhook(name=channel, settings=settings, client=client, timeout=0.3)
        result = await harness.release("v42", told(UNJUDGED_PLAN, channel))
    assert result.outcome is Outcome.PROMOTED


async def test_neither_address_nor_secret_is_in_the_history(
    harness: Harness, receiver: Receiver, channel: str
) -> None:
    receiver.answers = [(503, {}), (404, {})]
    await harness.release("v42", told(UNJUDGED_PLAN, channel))
    handle = harness.environment.client.get_workflow_handle(harness.service.workflow_id)
    history = (await handle.fetch_history()).to_json()
    assert "releases answered 404" in history
    assert receiver.url not in history
    assert SECRET not in history


async def test_a_channel_that_no_worker_has_is_refused_before_anything_happens(
    harness: Harness, channel: str
) -> None:
    before = len(harness.mesh.writes)
    await harness.start("v42", told(FAST_PLAN, channel, "releeses", "oncall"))
    with pytest.raises(InvalidPlan, match=r"no channel releeses; .* have releases; .*no channel oncall"):
        await harness.client.result(harness.service)
    assert len(harness.mesh.writes) == before
    assert (await harness.release("v42", UNJUDGED_PLAN)).outcome is Outcome.PROMOTED, "it kept no lock"
