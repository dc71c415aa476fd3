"""A real HTTP receiver of notifications, which answers as it is told."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PATIENCE = 30.0


@dataclass(frozen=True)
class Received:
    """One request as it arrived; header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """`answers` are given one after the other, then 204 for ever. While `hangs` is set nobody is answered."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    answered: int = 0
    hangs: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: Received) -> tuple[int, dict[str, str]]:
        """Keep a request and say how to answer it."""
        with self._lock:
            self.received.append(request)
            answer = self.answers.pop(0) if self.answers else (204, {})
        if self.hangs.is_set():
            self.released.wait(_PATIENCE)
        self.answered += 1
        return answer

    def events(self) -> list[str]:
        """The events that arrived, in the order of the release; a repeated delivery counts once."""
        documents = {one.document["sequence"]: one.document["event"] for one in self.received}
        return [documents[sequence] for sequence in sorted(documents)]


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port of this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more = receiver.take(Received(self.path, headers, body))
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
