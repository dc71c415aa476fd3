"""What loading took is known the next time, and counts before anything is allocated."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runtime import measurements
from runtime.measurements import Measurement, Measurements
from runtime.peak_memory import measured_peak


@pytest.fixture
def known(tmp_path: Path) -> Measurements:
    return Measurements(directory=tmp_path, device="cpu", runtime_build="test")


def test_an_artifact_nobody_measured_gets_the_largest_workspace_of_all(known: Measurements) -> None:
    assert known.workspace_of("a" * 64) == 0
    known.keep("b" * 64, Measurement(load_seconds=1, workspace_bytes=100))
    known.keep("c" * 64, Measurement(load_seconds=1, workspace_bytes=300))
    known.keep("d" * 64, Measurement(load_seconds=1))
    assert known.workspace_of("a" * 64) == known.workspace_of("d" * 64) == 300
    assert known.workspace_of("b" * 64) == 100


def test_another_device_or_build_learns_nothing(known: Measurements, tmp_path: Path) -> None:
    known.keep("b" * 64, Measurement(load_seconds=1, workspace_bytes=100))
    for device, build in (("cuda", "test"), ("cpu", "other")):
        assert Measurements(directory=tmp_path, device=device, runtime_build=build).read("b" * 64) is None


def test_a_damaged_measurement_is_none(known: Measurements, tmp_path: Path) -> None:
    known.keep("b" * 64, Measurement(load_seconds=1, workspace_bytes=100))
    (path,) = tmp_path.rglob("b" * 64)
    path.write_text("{")
    assert known.read("b" * 64) is None
    assert known.workspace_of("b" * 64) == 0


def test_only_the_latest_are_kept(
    known: Measurements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurements, "_MOST_KEPT", 3)
    for number in range(6):
        known.keep(f"{number:064x}", Measurement(load_seconds=number))
    assert len(list((tmp_path / "cpu~test").iterdir())) == 3
    assert known.read(f"{5:064x}") == Measurement(load_seconds=5)


def test_a_peak_is_seen_after_it_is_over() -> None:
    size = 64 << 20
    with measured_peak("cpu") as peak:
        torch.ones(size // 4)
    with measured_peak("cpu") as nothing:
        pass
    assert peak.bytes > 0.9 * size
    assert nothing.bytes < 0.5 * size


async def test_a_load_is_measured_and_the_measurement_outlives_the_process(
    world: Any, artifacts: Any
) -> None:
    first = artifacts.push("v1")
    await world.publish(first)
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", seed=2))
        await world.until(world.serving(instance, 2))
        await world.until(lambda: instance.tiers()[first.digest()].place == "disk")
        assert instance.tiers()[first.digest()].seconds > 0
    async with world.running() as again:
        await world.until(world.serving(again, 2))
        assert again.tiers()[first.digest()].seconds > 0
