"""A ranker that becomes slow when it is told to; runtimes load it through their settings."""

import os
import time
from pathlib import Path

from torch import Tensor, nn

from runtime.architectures import Ranker

_SWITCH = Path(os.environ["IS_SLOW"])
_SECONDS = 0.08


class SlowRanker(Ranker):
    """Takes its time for every batch once the switch is there."""

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        if _SWITCH.exists():
            time.sleep(_SECONDS)
        return super().forward(model, batch)
