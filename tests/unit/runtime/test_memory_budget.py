import os
from pathlib import Path

import pytest
import torch

from runtime.memory_budget import (
    MemoryNeed,
    check_budget,
    free_bytes,
    free_host_bytes,
    peak_beyond_pools,
    resident_bytes,
    whole_segments,
)
from runtime.memory_use import memory_use
from weightshift.errors import OutOfMemory

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    directory = tmp_path / "proc"
    (directory / "self").mkdir(parents=True)
    (directory / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 102400 kB\nHugePages_Total: 0\n")
    (directory / "self/cgroup").write_text("4:memory:/old\n0::/pod/container\n")
    return directory


def limit(group: Path, maximum: str, current: int, inactive: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{maximum}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")


def test_without_limits_the_host_decides(proc: Path, tmp_path: Path) -> None:
    limit(tmp_path / "cgroup/pod/container", "max", 50 * MIB, 0)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 100 * MIB


def test_the_tightest_enclosing_group_decides_and_clean_page_cache_is_free(
    proc: Path, tmp_path: Path
) -> None:
    limit(tmp_path / "cgroup/pod/container", str(90 * MIB), 40 * MIB, 10 * MIB)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 60 * MIB
    limit(tmp_path / "cgroup/pod", str(50 * MIB), 45 * MIB, 5 * MIB)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 10 * MIB


def limit_version_1(group: Path, maximum: int, current: int, inactive: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(f"{maximum}\n")
    (group / "memory.usage_in_bytes").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive}\n")


def test_limits_of_the_first_version_of_cgroups_count_too(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("11:cpu,cpuacct:/pod\n4:hugetlb,memory:/pod/container\n1:name=x:/\n")
    memory = tmp_path / "cgroup/memory"
    limit_version_1(memory / "pod/container", (1 << 63) - 4096, 50 * MIB, 0)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 100 * MIB
    limit_version_1(memory / "pod", 90 * MIB, 40 * MIB, 10 * MIB)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 60 * MIB
    # What a container sees of its own group, whose path on the host is another one.
    limit_version_1(memory, 50 * MIB, 45 * MIB, 5 * MIB)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 10 * MIB


def test_a_group_over_its_limit_has_nothing_free(proc: Path, tmp_path: Path) -> None:
    limit(tmp_path / "cgroup/pod/container", str(10 * MIB), 40 * MIB, 0)
    assert free_host_bytes(proc, tmp_path / "cgroup") == 0


def test_the_margin_counts() -> None:
    free = free_bytes("cpu")
    check_budget(MemoryNeed(weights=1), device="cpu")
    for need in (MemoryNeed(weights=1, margin=2 * free), MemoryNeed(weights=1, workspace=2 * free)):
        with pytest.raises(OutOfMemory, match=rf"needs {need.total} bytes \(weights 1, .* are free"):
            check_budget(need, device="cpu")


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (10 * MIB - 1, 20),
        (10 * MIB, 10),
        (10 * MIB + 1, 12),
        (999 * MIB, 1000),
    ],
)
def test_weights_take_whole_segments_of_a_gpu(size: int, taken: int) -> None:
    assert whole_segments(size, "cuda") == taken * MIB
    assert whole_segments(size, "cpu") == size


def reserved(peak: int, current: int) -> dict[str, dict[str, int]]:
    return {"all": {"peak": peak, "current": current}}


def test_weights_that_are_gone_are_no_peak_of_requests() -> None:
    # 900 for the old weights, which are gone, 900 for the new ones; requests had 70 and hold 40.
    pools = {(0, 1): reserved(900, 0), (0, 2): reserved(900, 900)}
    stats = {"reserved_bytes": reserved(1870, 940), "reserved_bytes_by_private_pools": pools}
    assert peak_beyond_pools(stats) == 30


def test_a_cache_that_only_grew_has_no_peak_beyond_it() -> None:
    stats = {"reserved_bytes": reserved(70, 70), "reserved_bytes_by_private_pools": {}}
    assert peak_beyond_pools(stats) == 0


def test_what_is_in_use_is_this_processs_own(proc: Path) -> None:
    (proc / "self/statm").write_text("900 25 3 1 0 9 0\n")
    assert resident_bytes(proc) == 25 * os.sysconf("SC_PAGE_SIZE")


def test_a_new_tensor_is_seen_in_every_kind_of_use() -> None:
    before = memory_use("cpu")
    tensor = torch.ones(32 << 18)
    after = memory_use("cpu")
    # Something else may be freed meanwhile.
    size = 0.5 * tensor.nbytes
    assert after.allocated - before.allocated >= size
    assert after.reserved - before.reserved >= size
    assert after.used - before.used >= size
    assert after.allocated <= after.reserved
    assert after.used < after.limit
