"""Whether the device still works: some errors leave it unusable until the process ends, some for a moment."""

import logging
import time
from collections.abc import Callable

import torch

REST_SECONDS = 5.0
"""How long an instance that ran out of memory takes no traffic, so that what is in flight can end."""

# PyTorch's own allocator on the CPU raises nothing more telling.
_HOST_ALLOCATOR = "DefaultCPUAllocator"

_logger = logging.getLogger(__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of model work means that the device or the host had no memory for it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _HOST_ALLOCATOR in str(error)
    )


class DeviceHealth:
    """Looks at every error of model work. Safe from any thread.

    After a device-side assertion every later call on a GPU fails; only a new process gets it back.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_lost = False
        self._clock = clock
        self._rests_until = -1.0

    @property
    def rests(self) -> bool:
        """Whether the device ran out of memory a moment ago."""
        return self._clock() < self._rests_until

    def exhausted(self) -> None:
        """A request found no memory: let the instance rest."""
        if not self.rests:
            _logger.error("a request found no memory; the instance rests for %g s", REST_SECONDS)
        self._rests_until = self._clock() + REST_SECONDS

    def note(self, error: BaseException) -> None:
        """Remember an error that no later call on the device survives."""
        if isinstance(error, torch.AcceleratorError) and not self.is_lost:
            self.lose(error)

    def lose(self, error: BaseException) -> None:
        """Give the device up."""
        self.is_lost = True
        _logger.error("the device has failed (%s); restart the instance", error)
