"""What several tests of the deployment need."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from weightshift.local.binaries import prometheus_binary

Promtool = Callable[..., str]


@pytest.fixture(scope="session")
def promtool(tmp_path_factory: pytest.TempPathFactory) -> Promtool:
    """Run promtool with these arguments; fails with its words when it does."""
    beside = prometheus_binary(tmp_path_factory.mktemp("prometheus")).parent / "promtool"
    binary = str(beside) if beside.exists() else shutil.which("promtool")
    assert binary is not None, "promtool is not installed beside prometheus"

    def run(*arguments: str | Path) -> str:
        command = [binary, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
