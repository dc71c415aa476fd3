"""The most memory that a piece of work took."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.memory_budget import resident_bytes

_PROC = Path("/proc")


@dataclass
class Peak:
    """`bytes` above what was in use before; known once the work is over."""

    bytes: int = 0


@contextmanager
def measured_peak(device: str) -> Iterator[Peak]:
    """Measure what happens inside. What live requests take meanwhile is counted too: an upper bound."""
    peak = Peak()
    before = _reset(device)
    yield peak
    peak.bytes = max(0, _greatest(device) - before)


def _reset(device: str) -> int:
    """Forget earlier peaks; return the bytes in use now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    with suppress(OSError):
        # 5 resets the kernel's record of the greatest resident size, and nothing else.
        (_PROC / "self/clear_refs").write_text("5", encoding="ascii")
    return resident_bytes(_PROC)


def _greatest(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    for line in (_PROC / "self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
