"""Copying a model's bytes to a device beside live requests."""

from collections.abc import Callable

import torch
from torch import Tensor

from runtime.device_pool import allocate_apart

_COPIED_AT_ONCE = 64 << 20


def copy_to_device(host: Tensor, device: str, checkpoint: Callable[[], None]) -> Tensor:
    """Copy page-locked bytes on a stream of their own; return once the copy is complete.

    One piece after the other, so that the inputs of live requests never wait behind the whole of it.
    `checkpoint` is called between pieces and may raise to stop.
    """
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        copy = allocate_apart(host.numel(), device)
        pieces = zip(torch.split(copy, _COPIED_AT_ONCE), torch.split(host, _COPIED_AT_ONCE), strict=True)
        for target, piece in pieces:
            checkpoint()
            target.copy_(piece, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
            copied.synchronize()
    return copy
