"""Today's workflow code must replay every history that was ever recorded."""

import json

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from tests.replay.record import HISTORIES, PATHS
from workflows.release import ReleaseWorkflow

RECORDED = {path.stem: path.read_text() for path in sorted(HISTORIES.glob("*.json"))}


async def replay(text: str) -> None:
    replayer = Replayer(workflows=[ReleaseWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(WorkflowHistory.from_json("release:recorded:ranker", text))


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_history_replays(name: str) -> None:
    await replay(RECORDED[name])


def test_every_path_is_recorded() -> None:
    assert set(RECORDED) >= set(PATHS)


def test_a_refusal_is_recorded_at_the_step_that_refused() -> None:
    events = json.loads(RECORDED["refused_at_verify"])["events"]
    types = {
        event["eventId"]: event["activityTaskScheduledEventAttributes"]["activityType"]["name"]
        for event in events
        if "activityTaskScheduledEventAttributes" in event
    }
    failed = [
        types[event["activityTaskFailedEventAttributes"]["scheduledEventId"]]
        for event in events
        if "activityTaskFailedEventAttributes" in event
    ]
    assert failed == ["fleet.verify"]


async def test_a_changed_workflow_would_be_noticed() -> None:
    """The replay test itself can fail: a history with another first command does not replay."""
    text = RECORDED["promoted"].replace('"registry.admit"', '"registry.other"')
    with pytest.raises(NondeterminismError):
        await replay(text)
