import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weightshift.local.demo_models import RECIPES, build_models
from weightshift.local.traffic_process import TrafficProcess

COMMAND = Path(sys.executable).parent / "weightshift"
IN_LOCAL = ("ranker", "-e", "local")
AT_ONCE = {"stages": [50, 100], "window": "0s", "max_window": "0s", "retain": "0s"}
SLOWLY = {"stages": [50, 100], "window": "10m"}


class CommandLine:
    """Runs the installed command against the stack in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, *arguments: str, code: int = 0) -> Any:
        """Return the JSON a command prints; it has to end with `code`."""
        process = subprocess.run(
            [COMMAND, *arguments, "--json", "--dir", self.directory / "stack"],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert process.returncode == code, process.stdout + process.stderr
        return json.loads(process.stdout)

    def plan(self, content: dict[str, Any]) -> str:
        """Write a plan file and return its path."""
        path = self.directory / "plan.json"
        path.write_text(json.dumps(content))
        return str(path)

    def start(self, artifact_id: str, plan: dict[str, Any], *more: str) -> Any:
        """Start a release."""
        return self.run(
            "release", "start", "ranker", artifact_id, "-e", "local", "--plan", self.plan(plan), *more
        )


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[CommandLine]:
    """A stack of its own, with two models stored and approved."""
    command = CommandLine(tmp_path)
    build_models(tmp_path / "models", RECIPES[:2])
    command.run("local", "up")
    try:
        for artifact_id in ("v41", "v42"):
            directory = str(tmp_path / "models" / artifact_id)
            names = ("--model", "ranker", "--id", artifact_id)
            schema = ("--feature-schema", "ranker-v1", "--architecture", "ranker")
            command.run("artifact", "push", directory, *names, *schema)
            command.run("artifact", "approve", "ranker", artifact_id)
        yield command
    finally:
        command.run("local", "down")


@pytest.mark.slow
async def test_a_release_and_a_rollback_lose_no_request(stack: CommandLine) -> None:
    assert stack.start("v41", AT_ONCE, "--wait")["outcome"] == "promoted"
    envoy = stack.run("local", "status")["addresses"]["envoy"]
    async with TrafficProcess(
        url=f"{envoy}/predict",
        expectations=stack.directory / "models" / "expectations.json",
        seconds=300,
        rate=100,
        on_figures=lambda _: None,
    ) as traffic:
        await traffic.allow("v41")
        await traffic.wait_for(lambda figures: "v41" in figures["artifacts"], seconds=30)
        await traffic.allow("v42")
        assert stack.start("v42", AT_ONCE, "--wait")["outcome"] == "promoted"
        await traffic.wait_for(lambda figures: "v42" in figures["artifacts"], seconds=30)
        take_back_in_the_middle(stack)
        figures = await traffic.stop()
    assert (figures["failed"], figures["misrouted"]) == (0, 0), figures["failures"]
    outcomes = [record["outcome"] for record in stack.run("release", "list", *IN_LOCAL)["releases"]]
    assert outcomes == ["rolled-back", "promoted", "promoted"]
    is_reported(stack)


def is_reported(stack: CommandLine) -> None:
    """The newest release's report has its traffic, its steps and its curves from Prometheus, on one page."""
    newest = stack.run("release", "list", *IN_LOCAL)["releases"][0]["release_id"]
    page = stack.directory / "report.html"
    report = stack.run("release", "report", newest, "-e", "local", "--html", str(page))
    assert (report["outcome"], report["notes"]) == ("rolled-back", [])
    assert [change["split"]["canary"] for change in report["splits"]] == [50, 0]
    assert any(report["measured"]["stable"]["p99"])
    assert "second thoughts" in page.read_text(encoding="utf-8")


def take_back_in_the_middle(stack: CommandLine) -> None:
    """Release `v41` again, and roll it back once the mesh shows it at 50 %."""
    wait_until_phase(stack, "done")
    stack.start("v41", SLOWLY)
    wait_until_split(stack, canary=50)
    taken_back = stack.run("release", "rollback", *IN_LOCAL, "--reason", "second thoughts")
    assert taken_back["split"] == {"stable": 100, "canary": 0}
    assert stack.run("release", "watch", *IN_LOCAL, code=3)["outcome"] == "rolled-back"


def wait_until_split(stack: CommandLine, *, canary: int) -> None:
    """Ask until the mesh's read-back shows the split; every question takes a process start."""
    for _ in range(100):
        split = stack.run("release", "status", *IN_LOCAL)["split"]
        if split and split["canary"] == canary:
            return
    raise AssertionError(f"traffic never reached {canary} %")


def wait_until_phase(stack: CommandLine, phase: str) -> None:
    """Ask until the release is there; every question takes a process start, so there is no sleep."""
    for _ in range(100):
        if stack.run("release", "status", *IN_LOCAL)["phase"] == phase:
            return
    raise AssertionError(f"the release did not reach {phase}")
