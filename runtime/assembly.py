"""Putting a module together over tensors that are in memory already."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from runtime.architectures import Architecture
from runtime.compiled_modules import check_not_compiled
from weightshift.errors import IncompatibleModel


def build(architecture: Architecture, resources: Any) -> nn.Module:
    """Build a module that allocates nothing. Raises `IncompatibleModel` for a compiled one."""
    with torch.device("meta"):
        module = architecture.build(resources)
    check_not_compiled(module)
    return module


def assemble(architecture: Architecture, resources: Any, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Put the tensors into a new module without copying them, and tie what the architecture ties.

    Raises `IncompatibleModel` when a tensor of the module has no value then, or a module is compiled.
    """
    module = place(architecture, resources, tensors)
    complete(architecture, module)
    return module


def place(architecture: Architecture, resources: Any, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Do the part of `assemble` that needs the tensors, but not yet their values."""
    module = build(architecture, resources)
    sources = {alias: tensors[source] for alias, source in architecture.tied.items()}
    module.load_state_dict({**tensors, **sources}, strict=True, assign=True)
    for alias, source in architecture.tied.items():
        owner, _, leaf = alias.rpartition(".")
        setattr(module.get_submodule(owner), leaf, module.get_parameter(source))
    return module.requires_grad_(False).eval()


def complete(architecture: Architecture, module: nn.Module) -> None:
    """Do the rest of it, once the tensors hold their values. Raises as `assemble`."""
    architecture.materialise(module)
    check_not_compiled(module)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise IncompatibleModel(f"Tensor {name!r} of the architecture has no value after loading.")
