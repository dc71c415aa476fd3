"""The data port: predictions and health."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from runtime.generation_holder import Generation
from runtime.instance import Instance
from runtime.responses import BodyTooLarge, ClientGone, error_document, read_body, send_json
from weightshift.errors import InvalidInput, NotServing, QueueFull, WeightshiftError

_logger = logging.getLogger(__name__)
_CLOSE = (b"connection", b"close")


class Predict:
    """`POST /predict`, as a bare ASGI application: it is the hot path."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._settings = instance.settings
        self._retry_after = (b"retry-after", str(instance.settings.retry_after).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever happens, exactly once."""
        try:
            self._instance.admission.enter()
        except NotServing as error:
            await self._refuse(send, 503, error, "draining")
            return
        try:
            await self._serve(scope, receive, send)
        finally:
            self._instance.admission.leave()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        limit, deadline = self._settings.max_body_bytes, self._settings.body_timeout
        try:
            content = await read_body(scope, receive, limit=limit, deadline=deadline)
        except BodyTooLarge as error:
            await self._refuse(send, 413, error, "too_large")
            return
        except TimeoutError:
            slow = InvalidInput(f"The body did not arrive within {deadline:g} seconds.")
            await self._refuse(send, 408, slow, "too_slow")
            return
        except ClientGone:
            return
        started = time.perf_counter()
        try:
            generation = self._instance.holder.acquire()
        except NotServing as error:
            self._instance.metrics.unready.inc()
            await self._refuse(send, 503, error, "not_serving")
            return
        status, document = await self._answer(generation, content)
        self._instance.metrics.answered(generation, status, time.perf_counter() - started)
        headers = generation.headers if status != 503 else (*generation.headers, self._retry_after)
        await send_json(send, status, document, headers)

    async def _answer(self, generation: Generation, content: bytes) -> tuple[int, object]:
        """Return status and body; the borrowed generation is given back on every path."""
        try:
            answer = self._submit(generation, content)
            async with asyncio.timeout(self._settings.answer_timeout):
                return 200, await answer
        except InvalidInput as error:
            return 400, error_document(error)
        except QueueFull as error:
            self._instance.metrics.rejected("queue_full")
            return 503, error_document(error)
        except TimeoutError:
            self._instance.metrics.rejected("too_late")
            return 503, error_document(QueueFull("The answer took too long; send the request again."))
        except Exception:
            _logger.exception("a request failed")
            return 500, error_document(WeightshiftError("The model failed; the instance's log says why."))

    def _submit(self, generation: Generation, content: bytes) -> asyncio.Future[object]:
        try:
            body = _parse(content)
            architecture = generation.loaded.architecture
            rows = architecture.preprocess(body, generation.loaded.resources)
            return self._instance.executor.submit(generation, body, rows)
        except BaseException:
            self._instance.holder.release(generation)
            raise

    async def _refuse(self, send: Send, status: int, error: WeightshiftError, reason: str) -> None:
        self._instance.metrics.rejected(reason)
        # A proxy that keeps the connection would send the next request here as well.
        headers = [_CLOSE] if status != 503 else [_CLOSE, self._retry_after]
        await send_json(send, status, error_document(error), headers)


def create_data_app(instance: Instance) -> Starlette:
    """Return the application of the data port."""
    startup = _health(lambda: instance.holder.current is not None)
    ready = _health(lambda: instance.is_ready)
    live = _health(lambda: instance.is_live)
    return Starlette(
        routes=[
            Route("/predict", Predict(instance), methods=["POST"]),
            Route("/startupz", startup),
            Route("/readyz", ready),
            Route("/livez", live),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
        ],
        exception_handlers={HTTPException: unknown_route},
    )


async def unknown_route(_: Request, error: Exception) -> JSONResponse:
    """Answer what no route matches in the error shape of every other answer."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    return JSONResponse(error_document(InvalidInput("There is no such route or method.")), status)


def _health(is_well: Callable[[], bool]) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def answer(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True}) if is_well() else JSONResponse({"ok": False}, 503)

    return answer


def _parse(content: bytes) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The body is not JSON: {error.msg}.") from None
