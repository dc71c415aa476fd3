"""How much memory this instance has taken, as its device sees it and as its allocator does."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.memory_budget import free_bytes, resident_bytes


@dataclass(frozen=True)
class MemoryUse:
    """Bytes. `allocated` holds something, `reserved` is what the allocator keeps for this process,
    `used` is all that is taken of `limit` on the device, or by this process where that is the CPU.
    """

    allocated: int
    reserved: int
    used: int
    limit: int


def memory_use(device: str) -> MemoryUse:
    """Return what is in use: of the device, or on the CPU by this process under its cgroups' limits."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        return MemoryUse(allocated=allocated, reserved=reserved, used=total - free, limit=total)
    used = resident_bytes(Path("/proc"))
    heap = _mallinfo()
    return MemoryUse(
        allocated=heap.uordblks + heap.hblkhd,
        reserved=heap.arena + heap.hblkhd,
        used=used,
        limit=used + free_bytes(device),
    )


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _mallinfo() -> _Mallinfo:
    read = ctypes.CDLL(None).mallinfo2
    read.restype = _Mallinfo
    return read()  # type: ignore[no-any-return]
