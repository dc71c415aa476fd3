"""A ranker whose answers never come; runtimes load it through their settings."""

import os
import threading
import time
from pathlib import Path

from torch import Tensor, nn

from runtime.architectures import Ranker

_SWITCH = Path(os.environ["IT_HANGS"])


class HangingRanker(Ranker):
    """Answers nothing while the switch is there; its dry-run is well all the time."""

    def forward(self, model: nn.Module, batch: Tensor) -> Tensor:
        while threading.current_thread().name == "executor" and _SWITCH.exists():
            time.sleep(0.01)
        return super().forward(model, batch)
