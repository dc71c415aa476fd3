"""The worker, run as an operator runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weightshift.artifacts.key_files import write_key_pair
from weightshift.artifacts.signing_keys import KeyRole, SigningKey


def run(**environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "worker"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_worker_without_a_release_key_does_not_start() -> None:
    done = run()
    assert done.returncode == 2
    assert "WEIGHTSHIFT_AUTHORISATION_KEY_FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_beside_the_permission_to_do_without_one_is_refused(tmp_path: Path) -> None:
    files = write_key_pair(SigningKey.generate(KeyRole.RELEASE), tmp_path)
    done = run(
        WEIGHTSHIFT_AUTHORISATION_KEY_FILE=str(files.private),
        WEIGHTSHIFT_AUTHORISATION_INSECURE_UNSIGNED="1",
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("channels", "problem"),
    [
        ('{"releases": {"url": "http://hooks.example.com/hidden"}}', "channels.releases.url"),
        ('{"releases": {"url": "https://hooks.example.com/hidden"}}', "channels.releases"),
        ('{"releases": {"url": "https://hooks.example.com/hidden"', "not JSON"),
    ],
)
def test_a_channel_that_is_wrong_is_named_without_its_address(channels: str, problem: str) -> None:
    done = run(WEIGHTSHIFT_AUTHORISATION_INSECURE_UNSIGNED="1", WEIGHTSHIFT_NOTIFY_CHANNELS=channels)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "hidden" not in done.stderr
    assert "Traceback" not in done.stderr
