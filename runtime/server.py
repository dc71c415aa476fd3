"""Two HTTP servers in one process, and signals that drain instead of cutting connections."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from runtime.admin import create_admin_app
from runtime.app import create_data_app
from runtime.http_protocol import BoundedProtocol, ConnectionLimit
from runtime.instance import Instance
from runtime.liveness import LivenessServer
from runtime.priority import switch_threads_quickly
from runtime.settings import RuntimeSettings
from weightshift.artifacts.open_store import open_store
from weightshift.registry.client import RegistryClient
from weightshift.settings import StoreSettings

_logger = logging.getLogger(__name__)
_BACKLOG = 2048
# In one turn of the event loop: all that wait at once would take every descriptor before the first is closed.
_ACCEPTED_AT_ONCE = 16
_CLOSING_SECONDS = 5
_LAST_EVENT_SECONDS = 0.5
# Longer than proxies keep an idle connection, so that none sends a request into a closing one.
_KEEP_ALIVE_SECONDS = 7200
# Of the descriptors that the process may have; loads, the registry and the store need some too.
_DATA_SHARE, _ADMIN_SHARE = 0.5, 0.125


class _Server(uvicorn.Server):
    """uvicorn refuses connections within a moment of SIGTERM; here the instance decides when."""

    def __init__(self, config: uvicorn.Config, *, most_connections: int) -> None:
        super().__init__(config)
        self.server_state = ConnectionLimit(most_connections)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; more clients may wait than are accepted at once, which is one number to asyncio."""
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


async def serve(settings: RuntimeSettings, store_settings: StoreSettings) -> bool:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the draining.

    Returns whether every thread has ended: one inside a model's code may not.
    """
    stopping, hurrying = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    client = RegistryClient(
        url=settings.registry_url,
        token=settings.registry_token.get_secret_value(),
        timeout=settings.registry_timeout,
    )
    instance = Instance(settings=settings, store=open_store(store_settings), client=client)
    liveness = LivenessServer(
        host=settings.live_host, port=settings.live_port, is_live=lambda: instance.is_live
    )
    # What start-up created lives as long as the process; collections need not look at it again.
    switch_threads_quickly()
    gc.collect()
    gc.freeze()
    liveness.start()
    try:
        await _serve(instance, liveness.port, stopping, hurrying)
        return await instance.close()
    finally:
        liveness.close()


async def _serve(
    instance: Instance, live_port: int, stopping: asyncio.Event, hurrying: asyncio.Event
) -> None:
    settings = instance.settings
    data = create_server(create_data_app(instance), most_connections=_most_connections(_DATA_SHARE))
    admin = create_server(create_admin_app(instance), most_connections=_most_connections(_ADMIN_SHARE))
    with (
        _listen(settings.data_host, settings.data_port) as data_socket,
        _listen(settings.admin_host, settings.admin_port) as admin_socket,
    ):
        _logger.info(
            "data on port %d, admin on port %d, liveness on port %d",
            _port(data_socket),
            _port(admin_socket),
            live_port,
        )
        servers = [
            asyncio.create_task(data.serve(sockets=[data_socket])),
            asyncio.create_task(admin.serve(sockets=[admin_socket])),
        ]
        instance.start()
        await stopping.wait()
        in_a_hurry = asyncio.create_task(_hurry(instance, hurrying, data, admin))
        if not await instance.start_drain():
            _logger.warning("requests were still in progress at the drain deadline")
        instance.sessions.end()
        data.should_exit = admin.should_exit = True
        await asyncio.gather(*servers)
        in_a_hurry.cancel()


async def _hurry(instance: Instance, hurrying: asyncio.Event, *servers: "_Server") -> None:
    """End what is in progress once a second signal came; streams get a moment for their last event."""
    await hurrying.wait()
    instance.hurry()
    await asyncio.sleep(_LAST_EVENT_SECONDS)
    for server in servers:
        server.force_exit = True


def create_server(app: ASGIApp, *, most_connections: int) -> _Server:
    """Return a server of HTTP that leaves the signals alone, and keeps so many connections at most open."""
    return _Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            backlog=_ACCEPTED_AT_ONCE,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        ),
        most_connections=most_connections,
    )


def _most_connections(share: float) -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if descriptors == resource.RLIM_INFINITY else int(descriptors * share)


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), backlog=_BACKLOG)


def _port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port
