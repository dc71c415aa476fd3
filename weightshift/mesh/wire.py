"""What travels between the Envoy adapter and a mesh agent."""

import httpx
from pydantic import Field

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Fence
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import (
    InvalidInput,
    MeshConfirmationTimeout,
    MeshDrift,
    MeshUnreachable,
    StaleFence,
    Unauthorised,
    UnknownService,
    WeightshiftError,
)

MAX_CONFIRM_TIMEOUT = 30.0

KEPT_CONNECTIONS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
"""A judge looks at the mesh in every interval: the connection is still there when a rollback needs it."""
AGENT_KEEP_ALIVE_SECONDS = 90
"""Longer than clients keep a connection, so that none is closed under a command."""

STATUS_OF: dict[type[WeightshiftError], int] = {
    InvalidInput: 400,
    Unauthorised: 401,
    UnknownService: 404,
    StaleFence: 409,
    MeshDrift: 412,
    MeshUnreachable: 503,
    MeshConfirmationTimeout: 504,
}
ERROR_OF = {kind.__name__: kind for kind in STATUS_OF}


class SplitCommand(Message):
    """Set a split, where the mesh still does what is `expected`; without one, whatever it does."""

    split: TrafficSplit
    fence: Fence
    expected: MeshState | None = None

    @property
    def state(self) -> MeshState:
        """What the mesh shows once it has followed."""
        return MeshState(split=self.split, fence=self.fence)


class Confirmation(Message):
    """Wait until the data plane shows a state, for up to `timeout` seconds."""

    state: MeshState
    timeout: float = Field(gt=0, le=MAX_CONFIRM_TIMEOUT)


class Failure(Message):
    """A typed error on the wire: the class name, and the message for people."""

    type: str
    message: str
