"""Whether a file's tensors are those of an architecture, and hold values that it can serve."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor, nn

from weightshift.errors import IncompatibleModel

_MOST_NAMED = 8
_MOST_CHARACTERS = 100

TensorSpecs: TypeAlias = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Each tensor's type and shape by name."""


def tensor_specs(tensors: Mapping[str, Tensor]) -> TensorSpecs:
    """Return each tensor's type and shape by name."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def check_tensors(found: TensorSpecs, module: nn.Module, tied: Mapping[str, str]) -> None:
    """Compare names, types and shapes both ways; a tied tensor may be absent.

    Raises `IncompatibleModel` with everything that differs, a few tensors of each kind by name.
    """
    wanted = tensor_specs(module.state_dict())
    kinds = {
        "lack ": map(_quoted, sorted(wanted.keys() - found.keys() - tied.keys())),
        "hold unknown ": map(_quoted, sorted(found.keys() - wanted.keys())),
        "hold ": (
            f"{_quoted(name)} as {_described(found[name])} instead of {_described(wanted[name])}"
            for name in sorted(found.keys() & wanted.keys())
            if found[name] != wanted[name]
        ),
    }
    if problems := [verb + some for verb, names in kinds.items() if (some := _listed(names))]:
        raise IncompatibleModel(
            f"The weights {'; they '.join(problems)}; push them under the architecture that they are of."
        )


def check_ties(tensors: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    """Raise `IncompatibleModel` where a tied tensor is there with values of its own: they would be lost."""
    for alias, source in tied.items():
        if alias in tensors and not torch.equal(tensors[alias], tensors[source]):
            raise IncompatibleModel(
                f"Tensors {alias!r} and {source!r} differ, which the architecture ties; "
                "push them under one that does not."
            )


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise `IncompatibleModel` for a tensor that holds NaN or infinity."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # NaN propagates through both, and this reads the memory once.
    least, greatest = torch.aminmax(tensor)
    if not bool(torch.isfinite(least) & torch.isfinite(greatest)):
        raise IncompatibleModel(f"Tensor {name!r} holds values that are not finite.")


def _listed(texts: Iterable[str]) -> str:
    """Return the first few, and how many more there are; empty for none."""
    rest = iter(texts)
    named = list(islice(rest, _MOST_NAMED))
    more = sum(1 for _ in rest)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _quoted(name: str) -> str:
    return repr(name[:_MOST_CHARACTERS])


def _described(spec: tuple[torch.dtype, tuple[int, ...]]) -> str:
    dtype, shape = spec
    return f"{dtype} {list(shape)}"
