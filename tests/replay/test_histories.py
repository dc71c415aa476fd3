"""Today's workflow code must replay every history that was ever recorded."""

import ast
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from tests.replay.record import HISTORIES, PATHS
from workflows.release import ReleaseWorkflow

WORKFLOWS = Path(__file__).parents[2] / "workflows"
RECORDED = {path.stem: path.read_text() for path in sorted(HISTORIES.glob("*.json"))}


async def replay(text: str) -> None:
    replayer = Replayer(workflows=[ReleaseWorkflow], data_converter=pydantic_data_converter)
    await replayer.replay_workflow(WorkflowHistory.from_json("release:recorded:ranker", text))


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_history_replays(name: str) -> None:
    await replay(RECORDED[name])


def test_every_path_is_recorded() -> None:
    assert set(RECORDED) >= set(PATHS)


def gates_in(source: str) -> Iterator[str]:
    """Every id that a module asks `workflow.patched` for, by literal or by constant."""
    tree = ast.parse(source)
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("patched"):
            (asked,) = node.args
            yield constants[asked.id] if isinstance(asked, ast.Name) else ast.literal_eval(asked)


def gates_passed(text: str) -> Iterator[str]:
    """Every id that a history has a marker of."""
    for event in json.loads(text)["events"]:
        marker = event.get("markerRecordedEventAttributes", {})
        if marker.get("markerName") == "core_patch":
            (payload,) = marker["details"]["patch-data"]["payloads"]
            yield json.loads(base64.b64decode(payload["data"]))["id"]


def test_every_gate_of_the_code_is_passed_in_a_recorded_history() -> None:
    gates = {gate for module in WORKFLOWS.glob("*.py") for gate in gates_in(module.read_text())}
    passed = {gate for text in RECORDED.values() for gate in gates_passed(text)}
    assert len(gates) >= 9
    assert gates <= passed, "record a path that passes what is missing: tests/replay/record.py"


def test_a_gate_is_found_however_it_is_written() -> None:
    source = '_NEW = "a new way"\nif workflow.patched(_NEW) or patched("another"):\n    pass\n'
    assert set(gates_in(source)) == {"a new way", "another"}


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
