"""Keeps `torch.compile` out of what is swapped."""

import sys

from torch import nn

from weightshift.errors import IncompatibleModel


def check_not_compiled(model: nn.Module) -> None:
    """Raise `IncompatibleModel` if a module in it is compiled.

    What `torch.compile` keeps outlives the generation it was made for, its weights included.
    """
    # Importing it takes seconds; where nobody did, nothing is compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return
    for name, module in model.named_modules():
        is_wrapped = isinstance(module, dynamo.OptimizedModule)
        if is_wrapped or getattr(module, "_compiled_call_impl", None) is not None:
            raise IncompatibleModel(
                f"Module {name or 'of the architecture'!r} is compiled; build it without torch.compile, "
                "whose cache outlives a swap."
            )
