"""The data port: predictions and health."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from runtime.compatibility import runtime_build
from runtime.endpoint import JsonFormat, ModelEndpoint
from runtime.generate import GenerateEndpoint
from runtime.instance import Instance
from runtime.open_inference import OpenInferenceFormat, model_metadata, server_metadata
from runtime.responses import error_document
from weightshift.errors import InvalidInput


def create_data_app(instance: Instance) -> Starlette:
    """Return the application of the data port."""
    startup = _health(lambda: instance.holder.current is not None)
    ready = _health(lambda: instance.is_ready)
    live = _health(lambda: instance.is_live)
    model = f"/v2/models/{instance.settings.model}"
    app = Starlette(
        routes=[
            Route("/predict", ModelEndpoint(instance, JsonFormat()), methods=["POST"]),
            Route("/generate", GenerateEndpoint(instance), methods=["POST"]),
            Route("/startupz", startup),
            Route("/readyz", ready),
            Route("/livez", live),
            Route("/v2", _server),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route(model, _model(instance)),
            Route(f"{model}/ready", ready),
            Route(f"{model}/infer", ModelEndpoint(instance, OpenInferenceFormat()), methods=["POST"]),
        ],
        exception_handlers={HTTPException: unknown_route},
    )
    # The address would be made of whatever host the client named.
    app.router.redirect_slashes = False
    return app


async def unknown_route(request: Request, error: Exception) -> JSONResponse:
    """Answer what no route matches in the error shape of every other answer."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    unknown = InvalidInput("There is no such route, model or method.")
    is_open_inference = request.url.path.startswith("/v2")
    return JSONResponse({"error": str(unknown)} if is_open_inference else error_document(unknown), status)


async def _server(_: Request) -> JSONResponse:
    return JSONResponse(server_metadata(runtime_build()))


def _model(instance: Instance) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(_: Request) -> JSONResponse:
        current = instance.holder.current
        if current is None:
            return JSONResponse({"error": "No model is loaded yet; ask again."}, 503)
        return JSONResponse(model_metadata(current))

    return answer


def _health(is_well: Callable[[], bool]) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True}) if is_well() else JSONResponse({"ok": False}, 503)

    return answer
