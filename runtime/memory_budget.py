"""Whether a second generation fits, decided before anything is allocated."""

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.device_pool import give_back_unused
from weightshift.errors import OutOfMemory

_CGROUP_ROOT = Path("/sys/fs/cgroup")
# The files of a limit and of what is taken, and the field of clean page cache in memory.stat.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
# How torch's CUDA allocator asks the device: up to 1 MiB, up to 10 MiB, and above that in steps.
_SMALL, _LARGE = 1 << 20, 10 << 20
_SMALL_SEGMENT, _MIDDLE_SEGMENT = 2 << 20, 20 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Bytes that a candidate needs free: for its weights, for the work of its dry-run, for what live
    requests needed at their peak and do not hold now, and a margin.
    """

    weights: int
    workspace: int = 0
    live_peak: int = 0
    margin: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.workspace + self.live_peak + self.margin


def check_budget(need: MemoryNeed, *, device: str) -> None:
    """Raise `OutOfMemory`, with the figures, unless everything that is needed is free on the device."""
    give_back_unused()
    free = free_bytes(device)
    if need.total > free:
        raise OutOfMemory(
            f"The candidate needs {need.total} bytes (weights {need.weights}, workspace {need.workspace}, "
            f"peak of live requests {need.live_peak}, margin {need.margin}), but {free} are free; "
            "give the instance more memory, or set its swap_mode to in-place."
        )


def live_peak_bytes(device: str) -> int:
    """Return how much more the device's allocator once held for live requests than it holds now."""
    if device != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    return peak_beyond_pools(torch.cuda.memory_stats_as_nested_dict())


def peak_beyond_pools(stats: Mapping[str, Any]) -> int:
    """Return by how many bytes the common cache was once larger, from the allocator's statistics.

    Each generation's weights are in a pool of their own; those that are gone say nothing of requests.
    """
    common = stats["reserved_bytes"]["all"]
    pools = [pool["all"] for pool in stats["reserved_bytes_by_private_pools"].values()]
    peak, now = (common[when] - sum(pool[when] for pool in pools) for when in ("peak", "current"))
    return int(max(0, peak - now))


def whole_segments(size: int, device: str) -> int:
    """Return what `size` bytes of weights take: on CUDA whole segments, shared with nothing else."""
    if device != "cuda":
        return size
    if size < _LARGE:
        return _SMALL_SEGMENT if size <= _SMALL else _MIDDLE_SEGMENT
    return -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT


def free_bytes(device: str) -> int:
    """Return what can still be allocated: the device's own view, or the host's under its limits."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return free_host_bytes(Path("/proc"), _CGROUP_ROOT)


def resident_bytes(proc: Path) -> int:
    """Return how much of this process is in the host's memory."""
    pages = int((proc / "self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def free_host_bytes(proc: Path, cgroup_root: Path) -> int:
    """Return the least of the host's available memory and the room under each enclosing cgroup.

    Both versions of cgroups count, since hosts that migrate have both.
    """
    fields = _fields(proc / "meminfo")
    rooms = [fields["MemAvailable:"] * 1024]
    membership = (proc / "self/cgroup").read_text(encoding="ascii").splitlines()
    for line in membership:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            rooms += _rooms(cgroup_root / path.lstrip("/"), _VERSION_2)
        elif "memory" in controllers.split(","):
            rooms += _rooms(cgroup_root / "memory" / path.lstrip("/"), _VERSION_1)
    return max(0, min(rooms))


def return_free_memory() -> None:
    """Give freed host memory back to the operating system, which the allocator would keep."""
    ctypes.CDLL(None).malloc_trim(0)


def _rooms(group: Path, names: tuple[str, str, str]) -> list[int]:
    """Return the room under a group's limit and under those around it, of which a container may see some."""
    return [_room(level, *names) for level in (group, *group.parents) if _is_limited(level / names[0])]


def _is_limited(limit: Path) -> bool:
    try:
        return limit.read_text(encoding="ascii").strip() != "max"
    except OSError:
        return False


def _room(group: Path, limit: str, taken: str, clean: str) -> int:
    most, current = (int((group / name).read_text(encoding="ascii")) for name in (limit, taken))
    # Clean page cache is given up before anything is killed.
    return most - (current - _fields(group / "memory.stat")[clean])


def _fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {parts[0]: int(parts[1]) for parts in lines}
