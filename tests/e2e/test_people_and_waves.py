"""People at the gates on the command line, and promotion in place, on one stack under checked traffic."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from ulid import ULID

from tests.faults.holding import candidates_held, make_holdable, until_held
from tests.faults.injection import carried, command, is_answered_by, pair, until, until_served
from tests.workflow.receiver import Receiver, receiving
from weightshift.contracts.approval import ApprovalRequest
from weightshift.contracts.control import Control
from weightshift.contracts.identity import Cohort
from weightshift.contracts.plan import Plan, Stage
from weightshift.contracts.release import Outcome, ReleasePhase, RollbackRequest
from weightshift.local.live_service import LiveService, live_service

DEADLINE = 60.0
NO_WINDOWS = {"window": 0, "max_window": 0, "retain": 0}
IN_PLACE = Plan.model_validate({"stages": [25, 50], "promotion": "in-place", **NO_WINDOWS})

JUDGED_IN_PLACE = Plan.model_validate(
    {
        "stages": [50],
        "promotion": "in-place",
        "window": "2s",
        "interval": 1,
        "max_window": "60s",
        "min_samples": 10,
        "retain": 0,
        "gates": [{"metric": "error_rate", "maximum": 0.5}],
    }
)
"""Judged at 50 %, and on while stable swaps."""

EVERYTHING = JUDGED_IN_PLACE.model_copy(
    update={
        "stages": (Stage(weight=25), Stage(weight=50, approvals=1)),
        "approvals": 1,
        "control": Control.MIRROR,
        "retain": timedelta(milliseconds=1),
        "notify": ("releases",),
    }
)
"""The same, judged at 25 % too, with people before both stages, told to a channel, and with a parachute."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveService]:
    """A whole stack with v41 released and v42 ready."""
    async with live_service(tmp_path_factory.mktemp("live")) as service:
        yield service


async def other_artifact(live: LiveService) -> str:
    """The one of the two models that stable does not serve."""
    stable = (await live.registry.targets(live.stack.service)).stable
    assert stable is not None
    return "v41" if stable.artifact_id == "v42" else "v42"


async def until_phase(live: LiveService, phase: ReleasePhase) -> None:
    async with asyncio.timeout(DEADLINE):
        while (await live.client.status(live.stack.service)).phase is not phase:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_people_let_a_release_go_on(live: LiveService, tmp_path: Path) -> None:
    service = live.stack.service
    where = (service.model, "-e", service.environment)
    plan = tmp_path / "plan.json"
    stages = [{"weight": 50}, {"weight": 100, "approvals": 1}]
    plan.write_text(json.dumps({"stages": stages, "approvals": 1, **NO_WINDOWS}))
    ahead = await command(live, "release", "approve", *where, "--artifact", "v42", "--reason", "it is time")
    async with live.traffic("v41", "v42"):
        started = await command(
            live,
            *("release", "start", service.model, "v42", "-e", service.environment),
            *("--plan", str(plan), "--approval", ahead["approval_id"]),
        )
        assert started["release_id"] == ahead["release_id"]
        await until_phase(live, ReleasePhase.AWAITING_APPROVAL)
        held = await command(live, "release", "status", *where)
        assert held["split"]["canary"] == 50, "the first gate was opened ahead"
        assert held["waiting_for"].startswith("1 approval before 100 %: weightshift release approve")
        await command(live, "release", "approve", *where, "--reason", "curves are fine")
        assert (await command(live, "release", "watch", *where))["outcome"] == "promoted"
    await live.ended()
    rows = await live.registry.audit(service, started["release_id"])
    told = [row.summary for row in rows]
    assert "local approved 50 % (it is time), 1 of 1 people" in told
    assert "local approved 100 % (curves are fine), 1 of 1 people" in told
    publications = [row.data["approvals"] for row in rows if row.step == "publish"]
    assert len(publications[-1]) == 2


@pytest.mark.slow
async def test_stable_swaps_in_waves_under_traffic(live: LiveService) -> None:
    service = live.stack.service
    candidate = await other_artifact(live)
    async with live.traffic("v41", "v42"):
        status = await live.release(candidate, JUDGED_IN_PLACE)
    assert (status.outcome, str(status.split)) == (Outcome.PROMOTED, "100/0")
    rows = await live.registry.audit(service, status.release_id)
    waves = [row.data["grant"]["instance_ids"] for row in rows if row.step == "grant-wave"]
    assert [len(wave) for wave in waves] == [1, 1]
    target = (await live.registry.targets(service)).stable
    assert target is not None
    assert (target.artifact_id, target.requires_grant) == (candidate, False)
    states = await live.registry.instances(service)
    stable = [one.report for one in states if one.report.cohort is Cohort.STABLE]
    assert sorted(name for wave in waves for name in wave) == sorted(one.instance_id for one in stable)
    assert all(one.actual is not None and one.actual.revision == target.revision for one in stable)


@pytest.mark.slow
async def test_a_rollback_between_waves_loses_no_request(live: LiveService) -> None:
    service = live.stack.service
    candidate = await other_artifact(live)
    async with live.traffic("v41", "v42"):
        await live.start(candidate, IN_PLACE)
        async with asyncio.timeout(DEADLINE):
            while not (await live.client.status(service)).way_back.startswith("reload"):
                await asyncio.sleep(0.01)
        await live.client.rollback(service, RollbackRequest(reason="second thoughts"))
        result = await live.ended()
    assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
    assert await other_artifact(live) == candidate
    rows = await live.registry.audit(service, result.release_id)
    steps = [row.step for row in rows]
    assert "grant-wave" in steps
    assert await live.registry.wave_grants(service) == ()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def receiver(live: LiveService) -> AsyncIterator[Receiver]:
    """Receives what the worker tells of releases; `stable-0` can be held."""
    with receiving() as receiver:
        channel = {"releases": {"url": receiver.url, "secret": "correct horse battery staple"}}
        await live.stack.stop("worker")
        await live.stack.start("worker", added={"WEIGHTSHIFT_NOTIFY_CHANNELS": json.dumps(channel)})
        await make_holdable(live, "stable-0")
        yield receiver


async def approved(live: LiveService) -> None:
    """Wait until people are asked, and approve as one of them."""
    service = live.stack.service
    await until_phase(live, ReleasePhase.AWAITING_APPROVAL)
    status = await live.client.status(service)
    approval = await live.registry.approve_release(
        ApprovalRequest(
            service=service,
            release_id=status.release_id,
            artifact_id=status.artifact_id,
            operation_id=str(ULID()),
        )
    )
    await live.client.approve(service, approval.approval_id)


@pytest.mark.slow
async def test_people_waves_copies_and_notices_in_one_plan(live: LiveService, receiver: Receiver) -> None:
    candidate = await other_artifact(live)
    receiver.received.clear()
    async with live.traffic("v41", "v42"):
        await live.start(candidate, EVERYTHING)
        await approved(live)
        await approved(live)
        result = await live.ended()
    assert (result.outcome, str(result.split)) == (Outcome.PROMOTED, "100/0")
    assert receiver.events() == ["start", "hold", "stage", "hold", "stage", "stage", "end"]
    rows = await live.registry.audit(live.stack.service, result.release_id)
    assert [row.step for row in rows].count("grant-wave") == 2
    assert any("25 %: healthy" in row.summary for row in rows)
    for cohort in Cohort:
        await until_served(live, candidate, cohort)


@pytest.mark.slow
async def test_a_rollback_in_a_wave_of_such_a_plan(live: LiveService, receiver: Receiver) -> None:
    service = live.stack.service
    serving, candidate = await pair(live)
    receiver.received.clear()
    async with live.traffic("v41", "v42") as traffic:
        with candidates_held(live, "stable-0"):
            await live.start(candidate, EVERYTHING)
            await approved(live)
            await approved(live)
            await until_held(live, "stable-0", candidate)
            assert (await carried(live)).split.canary == 50
            await live.client.signal_rollback(service, RollbackRequest(reason="second thoughts"))

            async def lessened() -> bool:
                return (await carried(live)).split.canary == 25

            await until(lessened)
        result = await live.ended()
        assert (result.outcome, str(result.split)) == (Outcome.ROLLED_BACK, "100/0")
        for cohort in Cohort:
            await until_served(live, serving, cohort)
        stable = (await live.registry.targets(service)).stable
        assert stable is not None
        await is_answered_by(traffic, stable.revision)
    assert receiver.events() == ["start", "hold", "stage", "hold", "stage", "rollback", "end"]
    assert await live.registry.wave_grants(service) == ()
