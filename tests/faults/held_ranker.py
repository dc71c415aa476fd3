"""A ranker whose candidates get no further than their dry-run; runtimes load it through their settings."""

import os
import time
from pathlib import Path

from runtime.architectures import Ranker, RankerResources, Sample

_SWITCH = Path(os.environ["IS_HELD"])


class HeldRanker(Ranker):
    """Waits before a candidate answers its first sample while the switch is there; serves all the time."""

    def samples(self, resources: RankerResources) -> tuple[Sample, ...]:
        while _SWITCH.exists():
            time.sleep(0.01)
        return super().samples(resources)
