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
LONGEST_FOUR_STAGE_HISTORY = 150


async def replay(text: str) -> None:
    replayer = Replayer(workflows=[ReleaseWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(WorkflowHistory.from_json("release:recorded:ranker", text))


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_history_replays(name: str) -> None:
    await replay(RECORDED[name])


def test_every_path_is_recorded() -> None:
    assert set(RECORDED) >= set(PATHS)


def test_a_four_stage_release_has_a_short_history() -> None:
    events = json.loads(RECORDED["promoted_by_a_patient_judge"])["events"]
    assert len(events) < LONGEST_FOUR_STAGE_HISTORY


async def test_a_changed_workflow_would_be_noticed() -> None:
    """The replay test itself can fail: a history with another first command does not replay."""
    text = RECORDED["promoted"].replace('"registry.admit"', '"registry.other"')
    with pytest.raises(NondeterminismError):
        await replay(text)
