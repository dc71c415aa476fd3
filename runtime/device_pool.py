"""Device memory that a generation has to itself, and that goes back to the device as a whole.

Memory of the allocator's common cache does not: a block belongs to the stream that it was allocated on, so
the copy of the next generation, on another stream, finds none of it, while the device counts it as taken.
"""

import threading

import torch
from torch import Tensor

_lock = threading.Lock()
_pools: list[torch.cuda.MemPool] = []


def allocate_apart(size: int, device: str) -> Tensor:
    """Return `size` bytes of a CUDA device from a pool of their own, on the current stream.

    Raises `torch.OutOfMemoryError`; the cache of live requests is not emptied for it.
    """
    # One at a time, and never while a pool goes: torch aborts when one goes while another allocates.
    with _lock:
        # Never in a local variable, which the frames of a failure would keep, and let go without the lock.
        _pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(_pools[-1]):
            return torch.empty(size, dtype=torch.uint8, device=device)


def give_back_unused() -> None:
    """Give the device each pool of which nothing is in use any more; on the CPU there are none.

    What a failure's frames still hold goes at a later call. Raises what a lost device raises.
    """
    with _lock:
        if _pools:
            # Giving memory back to a lost device would end the process; asking it anything only raises.
            torch.cuda.default_stream().query()
        _pools[:] = [pool for pool in _pools if _is_in_use(pool)]


def _is_in_use(pool: torch.cuda.MemPool) -> bool:
    segments = pool.snapshot(include_traces=False)  # type: ignore[no-untyped-call]
    return any(segment["active_size"] for segment in segments)
