import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightshift.contracts.identity import Service
from weightshift.contracts.release import Outcome
from weightshift.local import control
from weightshift.local import demo as demo_module
from weightshift.local.addresses import Addresses
from weightshift.local.demo_report import DemoFigures, DemoRelease
from weightshift.local.identity import own_identity
from weightshift.local.state import StackState, read_state, write_state

Run = Callable[..., Any]

ADDRESSES = Addresses(
    temporal="127.0.0.1:1",
    temporal_ui="http://127.0.0.1:2",
    prometheus="http://127.0.0.1:3",
    envoy="http://127.0.0.1:4",
    envoy_admin="http://127.0.0.1:5",
    mesh_agent="http://127.0.0.1:6",
    s3="http://127.0.0.1:7",
    registry="http://127.0.0.1:8",
    worker_metrics="http://127.0.0.1:9",
    runtimes={"stable-0": "http://127.0.0.1:10"},
    runtime_admins={"stable-0": "http://127.0.0.1:11"},
)


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """Pretend that this process supervises a stack."""
    state = StackState(
        supervisor=own_identity(),
        service=Service(model="ranker", environment="local"),
        addresses=ADDRESSES,
        environment={"WEIGHTSHIFT_ENVIRONMENT": "from-stack", "WEIGHTSHIFT_REGISTRY_TOKEN": "secret"},
        processes={"stable-0": own_identity()},
    )
    directory = tmp_path / "stack"
    directory.mkdir()
    write_state(directory, state)
    return directory


def test_a_running_stack_fills_variables_that_are_not_set(run: Run, releases: Any, stack: Path) -> None:
    assert run("release", "pause", "ranker", "--dir", str(stack)).code == 0
    assert releases.calls[-1][1].environment == "from-stack"
    os.environ["WEIGHTSHIFT_ENVIRONMENT"] = "mine"
    run("release", "pause", "ranker", "--dir", str(stack))
    assert releases.calls[-1][1].environment == "mine"


def test_status_shows_addresses_and_no_secret(run: Run, stack: Path) -> None:
    result = run("local", "status", "--dir", str(stack))
    assert result.code == 0
    assert "http://127.0.0.1:4" in result.out
    assert "stable-0" in result.out
    assert "secret" not in result.out
    document = run("local", "status", "--dir", str(stack), "--json").out
    assert json.loads(document)["running"] is True
    assert "secret" not in document


def test_without_a_stack_status_says_so_and_down_is_harmless(run: Run, tmp_path: Path) -> None:
    directory = str(tmp_path / "none")
    assert "no local stack runs in" in run("local", "status", "--dir", directory).out
    down = run("local", "down", "--dir", directory)
    assert down.code == 0
    assert f"no local stack runs in {directory}; `weightshift local up` starts one" in down.out


def test_a_stack_that_runs_already_is_left_alone(run: Run, stack: Path) -> None:
    result = run("local", "up", "--dir", str(stack))
    assert result.code == 0
    assert "runs already" in result.out
    assert "starting" not in result.out


def end_worker(stack: Path) -> None:
    state = read_state(stack)
    assert state is not None
    gone = state.processes["stable-0"].model_copy(update={"started": -1})
    write_state(stack, state.model_copy(update={"processes": {"worker": gone}}))


def test_a_process_that_ended_is_named_with_what_to_do(run: Run, stack: Path) -> None:
    assert " ended" not in run("local", "status", "--dir", str(stack)).out
    end_worker(stack)
    told = run("local", "status", "--dir", str(stack)).out
    assert "worker ended: `weightshift local up` starts it again" in told


def test_what_has_ended_is_started_again(run: Run, stack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = control.status(stack)
    end_worker(stack)

    async def up(directory: Path) -> control.StackStatus:
        assert directory == stack
        return whole

    monkeypatch.setattr(control, "up", up)
    result = run("local", "up", "--dir", str(stack))
    assert result.code == 0
    assert f"starting again in {stack}: worker;" in result.out
    assert "runs already" not in result.out


def figures(**changes: Any) -> DemoFigures:
    release = DemoRelease(
        artifact_id="v42", announced=Outcome.PROMOTED, outcome=Outcome.PROMOTED, reason="fine", seconds=1.0
    )
    traffic = {"requests": 9, "failed": 0, "misrouted": 0, "artifacts": {}, "failures": []}
    return DemoFigures(releases=(release,), traffic=traffic | changes, rollback_ms=40.0, seconds=2.0)


@pytest.mark.parametrize(("failed", "code"), [(0, 0), (1, 1)])
def test_the_demo_ends_with_one_line_and_what_it_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failed: int, code: int
) -> None:
    async def run_demo(*, directory: Path, keep: bool, view: Any) -> DemoFigures:
        assert directory == tmp_path / "state" / "demo"
        view.note("told")
        view.traffic({"requests": 1})
        return figures(failed=failed, failures=["failed: request 7"] * failed)

    monkeypatch.setattr(demo_module, "run_demo", run_demo)
    result = run("demo", "--dir", str(tmp_path / "state"), "--json", str(tmp_path / "figures.json"))
    assert result.code == code
    assert "told" in result.out
    assert ("request 7" in result.out) is bool(failed)
    assert result.out.count("demo: requests=9") == 1
    written = json.loads((tmp_path / "figures.json").read_text())
    assert (written["requests"], written["failed"], written["ok"]) == (9, failed, not failed)


def test_a_demo_leaves_a_running_stack_alone(run: Run, stack: Path) -> None:
    stack.rename(stack.parent / "demo")
    result = run("demo", "--dir", str(stack.parent))
    assert result.code == 1
    assert "weightshift local down --dir" in result.err
    assert (stack.parent / "demo" / "stack.json").exists()


def test_a_path_that_cannot_be_used_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run("local", "up", "--dir", str(tmp_path / "file" / "stack"))
    assert answer.code == 1
    assert "choose another path" in answer.err
    assert str(tmp_path / "file") in answer.err
