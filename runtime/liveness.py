"""`/livez` on a port and threads of its own, so that a busy event loop is not taken for a dead process."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_READ_SECONDS = 2.0
_CLOSE_SECONDS = 0.5


class LivenessServer:
    """Answers 200 while `is_live` says so, otherwise 503: then only a restart helps."""

    def __init__(self, *, host: str, port: int, is_live: Callable[[], bool]) -> None:
        self._server = _Server((host, port), _Handler, is_live)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="liveness", args=(_CLOSE_SECONDS,), daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._server.server_address[1]
        return port

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type["_Handler"], is_live: Callable[[], bool]
    ) -> None:
        super().__init__(address, handler)
        self.is_live = is_live

    def handle_error(self, *_: Any) -> None:
        """A probe that went away is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _READ_SECONDS
    server: _Server

    def do_GET(self) -> None:
        """Answer a probe."""
        if self.path != "/livez":
            self.send_error(404)
            return
        is_live = self.server.is_live()
        content = b'{"ok":true}' if is_live else b'{"ok":false}'
        self.send_response(200 if is_live else 503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds and are no news."""
