"""Weights on a real device: loaded, moved, exchanged in place, budgeted and freed."""

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch

from runtime.compatibility import check_requirements
from runtime.device_health import DeviceHealth
from runtime.device_pool import give_back_unused
from runtime.dry_run import dry_run
from runtime.execution import forward
from runtime.generation_holder import LoadedModel
from runtime.host_memory import move_to_device, move_to_host
from runtime.in_place import Exchange, is_exchangeable
from runtime.memory_budget import free_bytes, live_peak_bytes, whole_segments
from runtime.memory_use import memory_use
from runtime.model_loader import dispose
from runtime.peak_memory import measured_peak
from runtime.tensor_fit import tensor_specs
from weightshift.contracts.manifest import Requirements
from weightshift.errors import DryRunFailed, OutOfMemory

pytestmark = pytest.mark.gpu
ROWS = torch.linspace(-1, 1, 4 * 88).reshape(4, 88)
WIDE = (2048, 2048)
WIDE_CONFIG = {"config.json": b'{"hidden": [2048, 2048]}'}
SETTLED = 1 << 20


def scores(loaded: LoadedModel) -> torch.Tensor:
    return forward(loaded, [ROWS])[0]


def addresses(loaded: LoadedModel) -> list[int]:
    return [tensor.data_ptr() for tensor in loaded.module.state_dict().values()]


def allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def wide(artifacts: Any, name: str, seed: int) -> Any:
    return artifacts.push(name, weights=artifacts.weights(seed, WIDE), files=WIDE_CONFIG)


def test_it_answers_as_on_the_cpu(bench: Any, artifacts: Any) -> None:
    manifest = artifacts.push("v1")
    on_device, on_cpu = bench.load(manifest), bench.load(manifest, "cpu")
    assert {tensor.device.type for tensor in on_device.module.state_dict().values()} == {"cuda"}
    torch.testing.assert_close(scores(on_device), scores(on_cpu), rtol=1e-4, atol=1e-4)
    dry_run(on_device)


def test_disposal_gives_the_memory_back(bench: Any, artifacts: Any) -> None:
    before = allocated()
    loaded = bench.load(wide(artifacts, "v1", 1))
    assert allocated() - before >= loaded.allocated_bytes
    scores(loaded)
    dispose(loaded)
    assert allocated() - before < SETTLED


def test_a_generation_takes_whole_segments_and_gives_them_back(bench: Any, artifacts: Any) -> None:
    dispose(bench.load(wide(artifacts, "v0", 9)))
    before = torch.cuda.memory_reserved()
    loaded = bench.load(wide(artifacts, "v1", 1))
    taken = torch.cuda.memory_reserved() - before
    assert taken == whole_segments(loaded.allocated_bytes, "cuda")
    dispose(loaded)
    assert torch.cuda.memory_reserved() == before


def test_the_device_never_holds_more_than_two_generations(bench: Any, artifacts: Any) -> None:
    dispose(bench.load(wide(artifacts, "v0", 9)))
    before = torch.cuda.memory_reserved()
    serving = bench.load(wide(artifacts, "v1", 1))
    each = torch.cuda.memory_reserved() - before
    for seed in range(2, 6):
        candidate = bench.load(wide(artifacts, f"v{seed}", seed))
        assert torch.cuda.memory_reserved() - before == 2 * each
        dispose(serving)
        serving = candidate
    assert live_peak_bytes("cuda") < SETTLED


def test_weights_that_something_holds_go_once_it_lets_them_go(bench: Any, artifacts: Any) -> None:
    dispose(bench.load(wide(artifacts, "v0", 9)))
    before = torch.cuda.memory_reserved()
    loaded = bench.load(wide(artifacts, "v1", 1))
    held = next(iter(loaded.tensors.values()))
    dispose(loaded)
    assert torch.cuda.memory_reserved() > before
    del held
    give_back_unused()
    assert torch.cuda.memory_reserved() == before


def test_host_memory_is_the_way_back(bench: Any, artifacts: Any) -> None:
    before = allocated()
    loaded = bench.load(wide(artifacts, "v1", 1))
    expected = scores(loaded)
    reserved = torch.cuda.memory_reserved()
    move_to_host(loaded)
    assert loaded.is_staged
    assert reserved - torch.cuda.memory_reserved() == whole_segments(loaded.allocated_bytes, "cuda")
    assert allocated() - before < SETTLED
    assert all(tensor.is_pinned() for tensor in loaded.tensors.values())
    move_to_device(loaded)
    assert not loaded.is_staged
    assert torch.equal(scores(loaded), expected)


def test_an_exchange_keeps_the_addresses_and_needs_no_second_place(bench: Any, artifacts: Any) -> None:
    serving = bench.load(wide(artifacts, "v1", 1))
    old_scores, storage = scores(serving), addresses(serving)
    candidate = bench.stage(wide(artifacts, "v2", 2))
    assert is_exchangeable(serving, tensor_specs(candidate.tensors))
    in_use = allocated()
    with measured_peak("cuda") as peak:
        Exchange(serving=serving, candidate=candidate, health=DeviceHealth()).run(dry_run)
    assert addresses(candidate) == storage
    assert peak.bytes < candidate.allocated_bytes
    assert allocated() - in_use < SETTLED
    assert serving.is_staged
    alone = bench.load(wide(artifacts, "v2", 2))
    torch.testing.assert_close(scores(candidate), scores(alone), rtol=0, atol=0)
    back = Exchange(serving=candidate, candidate=serving, health=DeviceHealth())
    back.run(dry_run)
    assert addresses(serving) == storage
    assert torch.equal(scores(serving), old_scores)


def test_a_failed_exchange_changes_nothing(bench: Any, artifacts: Any) -> None:
    serving = bench.load(wide(artifacts, "v1", 1))
    expected, storage = scores(serving), addresses(serving)
    candidate = bench.stage(wide(artifacts, "v2", 2))

    def refuse(_: LoadedModel) -> None:
        raise DryRunFailed

    with pytest.raises(DryRunFailed):
        Exchange(serving=serving, candidate=candidate, health=DeviceHealth()).run(refuse)
    assert addresses(serving) == storage
    assert torch.equal(scores(serving), expected)
    assert candidate.is_staged


def test_a_candidate_without_room_is_refused_before_it_takes_any(bench: Any, artifacts: Any) -> None:
    before = allocated()
    with pytest.raises(OutOfMemory, match=r"weights \d+, workspace"):
        bench.load(artifacts.push("v1"), memory_margin=free_bytes("cuda"))
    assert allocated() == before


def test_memory_is_the_devices_own_view(bench: Any, artifacts: Any) -> None:
    before = memory_use("cuda")
    loaded = bench.load(wide(artifacts, "v1", 1))
    after = memory_use("cuda")
    assert after.allocated - before.allocated >= loaded.allocated_bytes
    assert after.allocated <= after.reserved <= after.used <= after.limit


def test_the_driver_and_cuda_can_be_required() -> None:
    check_requirements(Requirements(cuda=">=11", driver=">=450"))


ASSERTION = """
import torch
from runtime.device_health import DeviceHealth

health = DeviceHealth()
try:
    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].cpu()
except Exception as error:
    health.note(error)
raise SystemExit(0 if health.is_lost else 1)
"""


def test_a_device_side_assertion_loses_the_device() -> None:
    # In a process of its own, since nothing works on the device afterwards.
    finished = subprocess.run(
        [sys.executable, "-c", ASSERTION], capture_output=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr.decode()
