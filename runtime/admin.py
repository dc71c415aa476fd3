"""The admin port: status, metrics and orders, every route behind a token."""

import asyncio
import hmac
from dataclasses import asdict
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.app import unknown_route
from runtime.instance import Instance
from runtime.responses import error_document, send_json
from weightshift.errors import Unauthorised

_METRICS_PATH = "/metrics"


class RequireToken:
    """Outermost layer: whatever the route or method, a request without the token gets 401.

    So does one with the metrics token, where there is one, for anything but `GET /metrics`.
    """

    def __init__(self, app: ASGIApp, *, token: str, metrics_token: str | None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._metrics = None if metrics_token is None else f"Bearer {metrics_token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through whose token is enough for it."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected) or self._may_scrape(scope, given):
            await self._app(scope, receive, send)
            return
        missing = Unauthorised("No valid token came with the request; send `Authorization: Bearer TOKEN`.")
        await send_json(send, 401, error_document(missing), [(b"www-authenticate", b"Bearer")])

    def _may_scrape(self, scope: Scope, given: bytes) -> bool:
        if self._metrics is None or not hmac.compare_digest(given, self._metrics):
            return False
        return scope.get("method") == "GET" and scope["path"] == _METRICS_PATH


def create_admin_app(instance: Instance) -> Starlette:
    """Return the application of the admin port."""

    async def status(_: Request) -> Response:
        return JSONResponse(await _status(instance))

    async def metrics(_: Request) -> Response:
        return Response(await instance.render_metrics(), media_type=CONTENT_TYPE_LATEST)

    async def reconcile(_: Request) -> Response:
        await instance.reconcile_now()
        return JSONResponse(await _status(instance), 202)

    async def drain(_: Request) -> Response:
        instance.start_drain()
        return JSONResponse(await _status(instance), 202)

    token, metrics_token = instance.settings.admin_token, instance.settings.metrics_token
    require_token = Middleware(
        RequireToken,
        token=token.get_secret_value(),
        metrics_token=metrics_token.get_secret_value() if metrics_token else None,
    )
    app = Starlette(
        routes=[
            Route("/admin/status", status),
            Route(_METRICS_PATH, metrics),
            Route("/admin/reconcile", reconcile, methods=["POST"]),
            Route("/admin/drain", drain, methods=["POST"]),
        ],
        middleware=[require_token],
        exception_handlers={HTTPException: unknown_route},
    )
    app.router.redirect_slashes = False
    return app


async def _status(instance: Instance) -> dict[str, Any]:
    tiers = await asyncio.to_thread(instance.tiers)
    resident = [
        {
            **generation.describe().model_dump(mode="json"),
            "references": generation.references,
            "retired": generation.retired,
        }
        for generation in instance.holder.resident
    ]
    return {
        "report": (await instance.current_report()).model_dump(mode="json"),
        "resident": resident,
        "tiers": {digest: asdict(tier) for digest, tier in tiers.items()},
        "queue_length": instance.queue_length,
        "swap_mode": instance.settings.swap_mode.value,
        "paused": instance.gate.is_paused,
        "last_pause_seconds": instance.gate.last_seconds,
    }
