"""What an instance does when it may open nothing more, and what keeps clients from taking it there."""

import contextlib
import errno
import http.client
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

import runtime.instance

DEADLINE = 10.0
SERVER = """
import asyncio, resource, socket
from runtime.responses import send_json
from runtime.server import create_server

async def app(scope, receive, send):
    await send_json(send, 200, {})

listener = socket.create_server(("127.0.0.1", 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
print(listener.getsockname()[1], flush=True)
asyncio.run(create_server(app, most_connections=128).serve(sockets=[listener]))
"""


def probe(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().status


def test_however_many_connections_wait_the_next_client_is_answered() -> None:
    command = [sys.executable, "-c", SERVER]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        contextlib.ExitStack() as crowd,
    ):
        assert process.stdout is not None
        crowd.callback(process.kill)
        port = int(process.stdout.readline())
        for _ in range(600):
            crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE))
        assert probe(port) == 200
        process.kill()
        assert "Too many open files" not in process.stdout.read()


async def test_a_report_that_cannot_be_written_is_not_the_last_one(
    world: Any, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.publish(artifacts.push("v1"))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        has_failed = threading.Event()

        def refuse(_: str) -> None:
            has_failed.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as full:
            full.setattr(runtime.instance, "memory_use", refuse)
            await world.until(has_failed.is_set)
        await world.publish(artifacts.push("v2", seed=2))

        async def is_reported() -> bool:
            report = await world.report()
            return report.actual is not None and report.actual.revision == 2

        await world.until(is_reported)
        assert instance.is_live
