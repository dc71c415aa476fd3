"""Two HTTP servers in one process, and signals that drain instead of cutting connections."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from runtime.admin import create_admin_app
from runtime.app import create_data_app
from runtime.instance import Instance
from runtime.priority import switch_threads_quickly
from runtime.settings import RuntimeSettings
from weightshift.artifacts.open_store import open_store
from weightshift.registry.client import RegistryClient
from weightshift.settings import StoreSettings

_logger = logging.getLogger(__name__)
_BACKLOG = 2048
_CLOSING_SECONDS = 5
# Longer than proxies keep an idle connection, so that none sends a request into a closing one.
_KEEP_ALIVE_SECONDS = 7200


class _Server(uvicorn.Server):
    """uvicorn refuses connections within a moment of SIGTERM; here the instance decides when."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


async def serve(settings: RuntimeSettings, store_settings: StoreSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    client = RegistryClient(
        url=settings.registry_url,
        token=settings.registry_token.get_secret_value(),
        timeout=settings.registry_timeout,
    )
    instance = Instance(settings=settings, store=open_store(store_settings), client=client)
    data = _server(create_data_app(instance))
    admin = _server(create_admin_app(instance))
    # What start-up created lives as long as the process; collections need not look at it again.
    switch_threads_quickly()
    gc.collect()
    gc.freeze()
    with (
        _listen(settings.data_host, settings.data_port) as data_socket,
        _listen(settings.admin_host, settings.admin_port) as admin_socket,
    ):
        _logger.info("data on port %d, admin on port %d", _port(data_socket), _port(admin_socket))
        servers = [
            asyncio.create_task(data.serve(sockets=[data_socket])),
            asyncio.create_task(admin.serve(sockets=[admin_socket])),
        ]
        instance.start()
        await stopping.wait()
        if not await instance.start_drain():
            _logger.warning("requests were still in progress at the drain deadline")
        instance.sessions.end()
        data.should_exit = admin.should_exit = True
        await asyncio.gather(*servers)
    await instance.close()


def _server(app: ASGIApp) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        )
    )


def _listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), backlog=_BACKLOG)


def _port(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port
