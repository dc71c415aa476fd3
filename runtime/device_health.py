"""Whether the device still works: some errors leave it unusable until the process ends."""

import logging

import torch

_logger = logging.getLogger(__name__)


class DeviceHealth:
    """Looks at every error of model work. Safe from any thread.

    After a device-side assertion every later call on a GPU fails; only a new process gets it back.
    """

    def __init__(self) -> None:
        self.is_lost = False

    def note(self, error: BaseException) -> None:
        """Remember an error that no later call on the device survives."""
        if isinstance(error, torch.AcceleratorError) and not self.is_lost:
            self.is_lost = True
            _logger.error("the device has failed (%s); restart the instance", error)
