"""What an architecture adds to its contract when its model generates answers piece by piece."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn


@dataclass(frozen=True)
class Step:
    """What one step of a session gave: the events it sends, and whether it was the last."""

    events: tuple[dict[str, Any], ...]
    is_last: bool


@runtime_checkable
class StreamingArchitecture(Protocol):
    """An `Architecture` whose model also streams. `state` is whatever `open` returned.

    A state belongs to one session, which stays on one generation from its first step to its last, so
    nothing computed under other weights can reach it. `open`, `step` and `close` run on one thread.
    """

    def read_prompt(self, body: object, resources: Any) -> Any:
        """Check a parsed request body. Raises `InvalidInput`, naming the field."""

    def open(self, model: nn.Module, prompt: Any) -> Any:
        """Allocate a session's state, its key-value cache above all."""

    def step(self, model: nn.Module, state: Any) -> Step:
        """Advance a session; the number of its steps must have a bound."""

    def close(self, state: Any) -> None:
        """Free a session's state, wherever it stopped."""
