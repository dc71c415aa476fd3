"""HTTP/1.1 in which a request's head is bounded, in size and in time."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 << 10
"""What may still arrive of a head after the packet it began in; proxies send no longer ones."""

HEAD_SECONDS = 10.0


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a head that does not end, which the server would collect for ever, and closes the connection.

    A connection on which no request has begun is left alone: proxies keep some ready.
    """

    _is_in_head = False
    _has_begun = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        self._is_in_head = self._has_begun = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._is_in_head = False
        super().on_headers_complete()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.send_400_response("The head of the request is too long or came too slowly.")
