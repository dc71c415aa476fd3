from pathlib import Path

import pytest

from weightshift.local.services import worker_spec


def test_the_worker_gets_the_channels_of_whoever_starts_the_stack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHTSHIFT_NOTIFY_CHANNELS_FILE", "channels.json")
    monkeypatch.setenv("WEIGHTSHIFT_NOTIFY_CHANNELS", "")
    monkeypatch.setenv("WEIGHTSHIFT_NOTIFY_TIMEOUT", "1")
    environment = worker_spec({"WEIGHTSHIFT_REGISTRY_URL": "http://here"}, 9000).environment
    assert environment == {
        "WEIGHTSHIFT_REGISTRY_URL": "http://here",
        "WEIGHTSHIFT_NOTIFY_CHANNELS_FILE": str(tmp_path / "channels.json"),
        "WEIGHTSHIFT_WORKER_METRICS_ADDRESS": "127.0.0.1:9000",
    }
