"""A ranker that runs out of memory; runtimes load it through their settings."""

import os
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from runtime.architectures import Ranker

_SWITCH = Path(os.environ["MEMORY_IS_GONE"])
# More than any machine has, so that it is the real allocator that refuses.
_TOO_MUCH = 1 << 50


_WIDE = 1_000


class HungryRanker(Ranker):
    """Asks for more memory than there is: for a wide model always, for others once the switch is there."""

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        if _SWITCH.exists() or cast(nn.Linear, model.head).in_features > _WIDE:
            torch.empty(_TOO_MUCH, dtype=torch.uint8)
        return super().forward(model, batch)
