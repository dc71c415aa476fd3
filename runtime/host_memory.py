"""Moving a loaded model's weights between its device and host memory."""

import torch
from torch import Tensor

from runtime.assembly import assemble
from runtime.device_pool import give_back_unused
from runtime.generation_holder import LoadedModel
from runtime.model_loader import allocate_slots


def host_copy(loaded: LoadedModel) -> dict[str, Tensor]:
    """Return copies of a model's weights in one host allocation, page-locked where the model is on a GPU."""
    copies = allocate_slots(loaded.tensors, device="cpu", pinned=loaded.device == "cuda")
    with torch.inference_mode():
        for name, copy in copies.items():
            copy.copy_(loaded.tensors[name], non_blocking=True)
    finish_copies(loaded)
    return copies


def finish_copies(loaded: LoadedModel) -> None:
    """Wait until the copies that were begun on the model's device are complete."""
    if loaded.device == "cuda":
        torch.cuda.current_stream().synchronize()


def move_to_host(loaded: LoadedModel) -> None:
    """Free a model's weights on its device, keeping them in host memory; on the CPU they are there."""
    if loaded.device != "cpu" and not loaded.is_staged:
        loaded.tensors = host_copy(loaded)
        loaded.module = assemble(loaded.architecture, loaded.resources, loaded.tensors)
        loaded.is_staged = True
        give_back_unused()


def move_to_device(loaded: LoadedModel) -> None:
    """Copy a staged model's weights to its device, where they need room of their own."""
    if loaded.is_staged and loaded.device != "cpu":
        copies = allocate_slots(loaded.tensors, device=loaded.device)
        with torch.inference_mode():
            for name, copy in copies.items():
                copy.copy_(loaded.tensors[name], non_blocking=True)
        finish_copies(loaded)
        loaded.tensors = copies
        loaded.module = assemble(loaded.architecture, loaded.resources, loaded.tensors)
    loaded.is_staged = False
