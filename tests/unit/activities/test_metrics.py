"""A judge that cannot judge: what is seen of the instances counts all the same."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities import metrics
from activities.metrics import MetricsActivities
from tests.unit.activities.meter import CountingMeter
from weightshift.analysis.series import Series
from weightshift.contracts.commands import InstanceRef, Observation
from weightshift.contracts.evidence import Evidence
from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.plan import Plan
from weightshift.contracts.verdict import StageOutcome
from weightshift.errors import (
    MetricsUnreachable,
    OperationConflict,
    RegistryUnreachable,
    Unauthorised,
    WeightshiftError,
)
from weightshift.mesh.memory import MemoryMesh
from weightshift.registry.memory import MemoryRegistry


class Hanging:
    """A `MetricsReader` whose store never answers."""

    scrape_interval = 1.0
    calibration = 60.0
    mesh_errors = ""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        await asyncio.Event().wait()
        raise AssertionError


class Away(Hanging):
    """A `MetricsReader` whose store is away."""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        raise MetricsUnreachable("Prometheus did not answer")


def observation(*canary: InstanceRef) -> Observation:
    return Observation(
        release_id="R1",
        service=Service(model="ranker", environment="test"),
        stage=Plan().resolved_stages()[0],
        interval=timedelta(seconds=10),
        started_at=datetime.now(UTC),
        canary_revision=8,
        stable_revision=7,
        canary=canary,
    )


async def test_a_lost_instance_does_not_wait_for_a_metrics_store_that_hangs() -> None:
    judge = MetricsActivities(
        reader=Hanging(), registry=MemoryRegistry(), mesh=MemoryMesh(), lost_after=timedelta(seconds=0.02)
    )
    environment = ActivityEnvironment()
    # More than may be judged at a time, so that the last ones never get their turn.
    others = [asyncio.create_task(environment.run(judge.observe, observation())) for _ in range(20)]
    async with asyncio.timeout(5):
        gone = InstanceRef(instance_id="canary-0", boot_id="1")
        observed = await environment.run(judge.observe, observation(gone))
    assert observed.verdict.outcome is StageOutcome.BREACH
    assert "canary-0 is lost" in observed.verdict.reason
    assert not any(other.done() for other in others)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def test_every_heartbeat_carries_the_judges_latest_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_LONGEST_SILENCE", 0.1)
    beats: asyncio.Queue[str] = asyncio.Queue()
    environment = ActivityEnvironment()
    environment.on_heartbeat = beats.put_nowait
    judge = MetricsActivities(
        reader=Away(), registry=MemoryRegistry(), mesh=MemoryMesh(), lost_after=timedelta(seconds=0.2)
    )
    judging = asyncio.create_task(environment.run(judge.observe, observation()))
    async with asyncio.timeout(5):
        heard = [await beats.get() for _ in range(6)]
    judging.cancel()
    await asyncio.gather(judging, return_exceptions=True)
    assert heard[0] == "nothing is judged yet"
    assert set(heard[1:]) == {"Prometheus did not answer"}


async def test_a_judge_proves_itself_alive_however_rarely_instances_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_LONGEST_SILENCE", 0.01)
    beats: asyncio.Queue[str] = asyncio.Queue()
    environment = ActivityEnvironment()
    environment.on_heartbeat = beats.put_nowait
    judge = MetricsActivities(
        reader=Hanging(), registry=MemoryRegistry(), mesh=MemoryMesh(), lost_after=timedelta(hours=1)
    )
    seldom = observation().model_copy(update={"interval": timedelta(hours=1)})
    judging = asyncio.create_task(environment.run(judge.observe, seldom))
    async with asyncio.timeout(5):
        for _ in range(3):
            await beats.get()
    judging.cancel()
    await asyncio.gather(judging, return_exceptions=True)


class Asked(Away):
    """A store that is away, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        self.asked += 1
        return await super().select(selector, end=end)


async def test_a_store_that_is_away_is_asked_again_at_the_pace_of_looks_and_no_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_LONGEST_SILENCE", 0.2)
    reader, beats = Asked(), asyncio.Queue[str]()
    environment = ActivityEnvironment()
    environment.on_heartbeat = beats.put_nowait
    judge = MetricsActivities(
        reader=reader, registry=MemoryRegistry(), mesh=MemoryMesh(), lost_after=timedelta(seconds=0.4)
    )
    # Everything that could be judged is long due.
    late = observation().model_copy(update={"started_at": datetime.now(UTC) - timedelta(hours=1)})
    began = asyncio.get_running_loop().time()
    judging = asyncio.create_task(environment.run(judge.observe, late))
    async with asyncio.timeout(10):
        for _ in range(6):
            await beats.get()
    asked, took = reader.asked, asyncio.get_running_loop().time() - began
    # Two questions each time.
    assert asked <= 2 * (1 + took / 0.2)
    assert asked >= 2 * 3
    judging.cancel()
    await asyncio.gather(judging, return_exceptions=True)


class Refusing(MemoryRegistry):
    """A registry that answers every question of a judge with an error."""

    def __init__(self, error: WeightshiftError) -> None:
        super().__init__()
        self._error = error

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        raise self._error

    async def record_evidence(self, evidence: Evidence) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [Unauthorised(), OperationConflict(), RegistryUnreachable()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_the_registry_says_the_stage_is_judged_and_the_failure_counted(
    error: WeightshiftError,
) -> None:
    meter = CountingMeter()
    environment = ActivityEnvironment()
    environment.metric_meter = meter  # type: ignore[assignment]
    judge = MetricsActivities(
        reader=Away(), registry=Refusing(error), mesh=MemoryMesh(), lost_after=timedelta(seconds=0.2)
    )
    gone = InstanceRef(instance_id="canary-0", boot_id="1")
    told = Evidence(
        service=Service(model="ranker", environment="test"),
        release_id="R1",
        operation_id="R1:step:1",
        step="observing",
        operator="ci",
        summary="told",
    )
    over = Plan(window=timedelta(seconds=1), max_window=timedelta(seconds=1)).resolved_stages()[0]
    short = observation(gone).model_copy(
        update={"stage": over, "interval": timedelta(seconds=0.3), "evidence": (told,)}
    )
    async with asyncio.timeout(10):
        observed = await environment.run(judge.observe, short)
    assert observed.verdict.outcome is StageOutcome.INCONCLUSIVE
    assert not observed.evidence_recorded
    assert meter.counted["weightshift_judge_registry_errors"] >= 2
