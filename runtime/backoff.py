"""Capped exponential back-off with jitter, so that a fleet never retries in step."""

import random


class Backoff:
    """Grows from `initial` to `maximum` seconds by doubling; every delay is drawn from its upper half."""

    def __init__(self, *, initial: float, maximum: float) -> None:
        self._initial = initial
        self._maximum = maximum
        self._current = initial

    def next_delay(self) -> float:
        """Return the seconds to wait now, and double the next ones."""
        delay = self._current
        self._current = min(self._maximum, self._current * 2)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again from the initial delay: the last attempt succeeded."""
        self._current = self._initial
