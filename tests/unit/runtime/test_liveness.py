"""The liveness port answers probes, whoever else holds connections to it."""

import gc
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from runtime import liveness
from runtime.liveness import MOST_CONNECTIONS, LivenessServer

PATIENCE = 20.0


class Probed:
    """A server whose word can be changed."""

    def __init__(self) -> None:
        self.is_live = True
        self.server = LivenessServer(host="127.0.0.1", port=0, is_live=lambda: self.is_live)

    def probe(self, path: str = "/livez") -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.server.port}{path}", timeout=PATIENCE)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE)


@pytest.fixture
def probed() -> Iterator[Probed]:
    probed = Probed()
    probed.server.start()
    yield probed
    probed.server.close()


def test_it_tells_whether_the_process_lives(probed: Probed) -> None:
    assert (probed.probe().status_code, probed.probe().json()) == (200, {"ok": True})
    probed.is_live = False
    assert (probed.probe().status_code, probed.probe().json()) == (503, {"ok": False})
    assert probed.probe("/other").status_code == 404


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_are_bounded_and_take_no_threads(probed: Probed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "ANSWER_SECONDS", 10 * PATIENCE)
    threads = threading.active_count()
    idle = [probed.connect() for _ in range(2 * MOST_CONNECTIONS)]
    try:
        assert probed.probe().status_code == 200
        assert threading.active_count() == threads
        # The oldest had to go; the newest are still there.
        assert all(is_closed(connection) for connection in idle[:MOST_CONNECTIONS])
        idle[-1].sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in idle:
            connection.close()


def test_a_head_that_comes_in_drips_is_not_waited_for(
    probed: Probed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "ANSWER_SECONDS", 0.1)
    with probed.connect() as connection:
        connection.settimeout(0.02)
        connection.sendall(b"GET /livez HTTP/1.1\r\n")
        for _ in range(int(PATIENCE / 0.02)):
            try:
                connection.sendall(b"x")
                received = connection.recv(1)
            except TimeoutError:
                continue
            except OSError:
                return
            assert received == b""
            return
    pytest.fail("the connection was kept open")


def test_conversations_end_with_it(caplog: pytest.LogCaptureFixture) -> None:
    probed = Probed()
    probed.server.start()
    threads = threading.active_count()
    clients = [probed.connect() for _ in range(3)]
    try:
        assert probed.probe().status_code == 200
        probed.server.close()
        assert threading.active_count() < threads
        del probed
        gc.collect()
    finally:
        for client in clients:
            client.close()
    # asyncio tells of tasks that nobody waited for.
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_head_without_an_end_is_not_collected(probed: Probed) -> None:
    with probed.connect() as connection:
        try:
            connection.sendall(b"GET /livez HTTP/1.1\r\nx: " + b"x" * (1 << 20))
            assert is_closed(connection)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert probed.probe().status_code == 200
