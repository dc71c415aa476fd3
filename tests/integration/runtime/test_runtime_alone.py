"""The real process without a registry: what it answers, and to whom."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/admin/status", "/admin/drain", "/admin/reconcile", "/metrics", "/other"])
async def test_every_admin_route_and_method_needs_the_token(
    bench: Any, unpublished: Any, method: str, path: str
) -> None:
    for token in ("", "Bearer", f"Bearer {bench.admin_token}x", f"Basic {bench.admin_token}"):
        answer = await unpublished.admin.request(method, path, headers={"authorization": token})
        assert answer.status_code == 401
    assert (await unpublished.admin.get("/admin/status")).json()["report"]["draining"] is False


async def test_without_a_model_it_lives_but_is_neither_started_nor_ready(unpublished: Any) -> None:
    statuses = {
        path: (await unpublished.data.get(path)).status_code for path in ("/livez", "/startupz", "/readyz")
    }
    assert statuses == {"/livez": 200, "/startupz": 503, "/readyz": 503}
    assert (await unpublished.data.post("/predict", content=b"{}")).status_code == 503


def test_the_process_runs_few_threads(unpublished: Any) -> None:
    status = Path(f"/proc/{unpublished.process.pid}/status").read_text(encoding="ascii")
    threads = int(re.search(r"^Threads:\s+(\d+)$", status, re.MULTILINE)[1])  # type: ignore[index]
    assert threads <= 10


def test_bad_settings_end_the_start_with_one_line_each_and_no_secret(tmp_path: Path) -> None:
    environment = {
        "WEIGHTSHIFT_RUNTIME_MODEL": "../ranker",
        "WEIGHTSHIFT_RUNTIME_ADMIN_TOKEN": "hunter2",
        "WEIGHTSHIFT_RUNTIME_CACHE_DIR": str(tmp_path),
    }
    finished = subprocess.run(
        [sys.executable, "-m", "runtime"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert finished.returncode == 2
    assert "model" in finished.stderr
    assert "admin_token" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert "hunter2" not in finished.stderr


def test_a_cache_or_a_port_that_cannot_be_used_ends_the_start_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for settings, words in (
            ({"CACHE_DIR": str(tmp_path / "file/cache")}, "Not a directory"),
            ({"CACHE_DIR": str(tmp_path), "DATA_PORT": str(taken.getsockname()[1])}, "in use"),
        ):
            own = {
                "MODEL": "ranker",
                "ENVIRONMENT": "test",
                "COHORT": "stable",
                "INSTANCE_ID": "stable-0",
                "ADMIN_TOKEN": "a-token-for-tests",
                "LIVE_PORT": "0",
                "INSECURE_UNSIGNED": "1",
                **settings,
            }
            finished = subprocess.run(
                [sys.executable, "-m", "runtime"],
                env={
                    **{f"WEIGHTSHIFT_RUNTIME_{name}": value for name, value in own.items()},
                    "WEIGHTSHIFT_STORE_URL": f"file://{tmp_path}",
                },
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert finished.returncode == 1
            assert words in finished.stderr
            assert "cache_dir" in finished.stderr
            assert "Traceback" not in finished.stderr
