"""The registry's HTTP service. Run as `python -m weightshift.registry.service`."""

import asyncio
import logging
from datetime import timedelta

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from weightshift.artifacts.configured_keys import release_authoriser
from weightshift.errors import WeightshiftError
from weightshift.registry.base import Registry
from weightshift.registry.guard import Guard, NoSuchRoute
from weightshift.registry.listener import TargetListener
from weightshift.registry.migrate import migrate
from weightshift.registry.refusals import RefusalRecorder
from weightshift.registry.routes import Routes
from weightshift.registry.settings import MigrationSettings, RegistryServiceSettings
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.tokens import PostgresTokens, TokenStore
from weightshift.registry.watch import TargetBell
from weightshift.settings import AuthorisationSettings, RegistrySettings

SHUTDOWN_SECONDS = 2
"""How long open requests may take once the service is told to stop; long polls are cut and repeated."""

MAX_CONNECTIONS = 10_000

_logger = logging.getLogger(__name__)


def create_app(
    *,
    registry: Registry,
    tokens: TokenStore,
    bell: TargetBell,
    lost_after: timedelta = timedelta(seconds=10),
    mismatch_after: timedelta = timedelta(minutes=5),
) -> Starlette:
    """Return the ASGI application over a registry; `bell` must ring when its targets change."""
    routes = Routes(registry=registry, bell=bell, lost_after=lost_after, mismatch_after=mismatch_after)
    guard = Middleware(Guard, tokens=tokens, refusals=RefusalRecorder(registry=registry))
    return Starlette(
        routes=routes.all(), middleware=[guard], exception_handlers={HTTPException: _no_such_route}
    )


async def _no_such_route(_: Request, error: Exception) -> Response:
    # To the guard, which answers it like every other refusal.
    raise NoSuchRoute from error


async def serve(
    settings: RegistrySettings,
    service: RegistryServiceSettings,
    authorisation: AuthorisationSettings,
    migration: MigrationSettings,
) -> None:
    """Serve until told to stop. Raises `RegistryUnreachable`, `SchemaMismatch` at the start."""
    if owner_dsn := migration.owner_dsn.get_secret_value():
        await migrate(owner_dsn=owner_dsn, application_role=migration.application_role)
    dsn = settings.dsn.get_secret_value()
    registry = await PostgresRegistry.connect(
        dsn=dsn,
        pool_size=settings.pool_size,
        timeout=settings.timeout,
        approval_policy=service.approval_policy,
        # It publishes nothing, but renews what grows old while it is served.
        authoriser=release_authoriser(authorisation) if authorisation.has_key else None,
    )
    bell = TargetBell()
    listener = TargetListener(dsn=dsn, bell=bell, heartbeat=service.heartbeat, timeout=settings.timeout)
    app = create_app(
        registry=registry,
        tokens=PostgresTokens(database=registry.database),
        bell=bell,
        lost_after=timedelta(seconds=settings.lost_after),
        mismatch_after=timedelta(seconds=service.mismatch_after),
    )
    server = _server(app, service)
    listening = asyncio.create_task(listener.run(), name="target listener")
    try:
        await server.serve()
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await registry.close()


def _server(app: Starlette, service: RegistryServiceSettings) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        host=service.host,
        port=service.port,
        ws="none",
        lifespan="off",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


def main() -> None:
    """Serve with the settings that the environment names."""
    logging.basicConfig(level=logging.INFO)
    try:
        asyncio.run(
            serve(RegistrySettings(), RegistryServiceSettings(), AuthorisationSettings(), MigrationSettings())
        )
    except WeightshiftError as error:
        _logger.critical("%s", error)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
