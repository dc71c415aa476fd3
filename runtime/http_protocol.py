"""HTTP/1.1 in which a request's head is bounded, in size and in time, and so is the number of connections."""

import asyncio
import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_logger = logging.getLogger(__name__)

MOST_HEAD_BYTES = 64 << 10
"""What may still arrive of a head after the packet it began in; proxies send no longer ones."""

HEAD_SECONDS = 10.0


class ConnectionLimit(ServerState):
    """What the connections of one server share; at most `most` of them stay open."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._was_full = False
        # In the order in which they began to wait.
        self._waiting: dict[BoundedProtocol, None] = {}

    def waits(self, connection: "BoundedProtocol") -> None:
        """No request of a connection is being answered now."""
        self._waiting[connection] = None

    def is_busy(self, connection: "BoundedProtocol") -> None:
        """A request's head is complete, or the connection is gone."""
        self._waiting.pop(connection, None)

    def make_room(self) -> None:
        """Close whichever connections have waited longest while there are too many."""
        if len(self.connections) > self._most and not self._was_full:
            self._was_full = True
            _logger.warning(
                "more than %d connections: the oldest idle ones are closed from now on; "
                "let clients keep fewer, or raise the limit of open files",
                self._most,
            )
        while len(self.connections) > self._most and self._waiting:
            oldest = next(iter(self._waiting))
            oldest.abandon()


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a head that does not end, which the server would collect for ever, and closes the connection.

    A connection on which no request has begun is left alone, since proxies keep some ready, until there are
    too many of them.
    """

    server_state: ConnectionLimit
    _is_in_head = False
    _has_begun = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come; where there are too many, another one goes."""
        super().connection_made(transport)
        self.server_state.waits(self)
        self.server_state.make_room()

    def abandon(self) -> None:
        """Close the connection now, with what it may still have to send."""
        self._leave()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a packet."""
        self._has_begun = False
        super().data_received(data)
        if not self._is_in_head:
            self._stop_timer()
            return
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._refuse)
        if not self._has_begun:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self._leave()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        self._is_in_head = self._has_begun = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._is_in_head = False
        self.server_state.is_busy(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A request is answered."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.server_state.waits(self)

    def _leave(self) -> None:
        self.server_state.is_busy(self)
        # At once, or those that come in the same moment would be counted against it.
        self.connections.discard(self)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.send_400_response("The head of the request is too long or came too slowly.")
