"""The admin port: status, metrics and orders, every route behind a token."""

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


class RequireToken:
    """Outermost layer: whatever the route or method, a request without the token gets 401."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request with the token through."""
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, self._expected):
            await self._app(scope, receive, send)
            return
        missing = Unauthorised("No valid token came with the request; send `Authorization: Bearer TOKEN`.")
        await send_json(send, 401, error_document(missing), [(b"www-authenticate", b"Bearer")])


def create_admin_app(instance: Instance) -> Starlette:
    """Return the application of the admin port."""

    async def status(_: Request) -> Response:
        return JSONResponse(_status(instance))

    async def metrics(_: Request) -> Response:
        return Response(await instance.render_metrics(), media_type=CONTENT_TYPE_LATEST)

    async def reconcile(_: Request) -> Response:
        await instance.reconcile_now()
        return JSONResponse(_status(instance), 202)

    async def drain(_: Request) -> Response:
        instance.start_drain()
        return JSONResponse(_status(instance), 202)

    token = instance.settings.admin_token.get_secret_value()
    return Starlette(
        routes=[
            Route("/admin/status", status),
            Route("/metrics", metrics),
            Route("/admin/reconcile", reconcile, methods=["POST"]),
            Route("/admin/drain", drain, methods=["POST"]),
        ],
        middleware=[Middleware(RequireToken, token=token)],
        exception_handlers={HTTPException: unknown_route},
    )


def _status(instance: Instance) -> dict[str, Any]:
    resident = [
        {
            **generation.describe().model_dump(mode="json"),
            "references": generation.references,
            "retired": generation.retired,
        }
        for generation in instance.holder.resident
    ]
    return {
        "report": instance.report().model_dump(mode="json"),
        "resident": resident,
        "tiers": {digest: asdict(tier) for digest, tier in instance.tiers().items()},
        "queue_length": instance.queue_length,
        "swap_mode": instance.settings.swap_mode.value,
        "paused": instance.gate.is_paused,
        "last_pause_seconds": instance.gate.last_seconds,
    }
