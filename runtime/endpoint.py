"""One request through one generation, exactly once, in whatever wire format it came."""

import asyncio
import logging
import time
from typing import Any, Protocol

import orjson
from starlette.types import Receive, Scope, Send
from torch import Tensor

from runtime.answer_deadline import answer_seconds
from runtime.client_watch import ClientWatch
from runtime.execution import answer_body
from runtime.generation_holder import Generation, LoadedModel
from runtime.instance import Instance
from runtime.responses import (
    BodyTooLarge,
    ClientGone,
    Headers,
    error_document,
    read_body,
    send_content,
    send_json,
)
from weightshift.errors import (
    AnswerTooLate,
    InvalidInput,
    MemoryExhausted,
    NotServing,
    QueueFull,
    WeightshiftError,
)

_logger = logging.getLogger(__name__)
CLOSE = (b"connection", b"close")
"""With a refusal: a proxy that keeps the connection would send the next request here as well."""


class WireFormat(Protocol):
    """How requests and answers of one route are spelled."""

    def read(self, scope: Scope, content: bytes, loaded: LoadedModel) -> tuple[Any, Tensor]:
        """Return the parsed body and its input rows. Raises `InvalidInput`."""

    def finish(self, loaded: LoadedModel, body: Any, out: Tensor) -> object:
        """Turn output rows into an answer, on the executor's thread; what it raises is a model's failure."""

    def write(self, generation: Generation, answer: Any) -> tuple[bytes, Headers]:
        """Return the content of an answer and the headers that describe it."""

    def error(self, error: WeightshiftError) -> object:
        """Return the JSON body of an error."""


class JsonFormat:
    """The architecture's own JSON: `POST /predict`."""

    def read(self, _: Scope, content: bytes, loaded: LoadedModel) -> tuple[Any, Tensor]:
        """Parse the body and let the architecture read it. Raises `InvalidInput`."""
        body = parse_json(content)
        return body, loaded.architecture.preprocess(body, loaded.resources)

    def finish(self, loaded: LoadedModel, body: Any, out: Tensor) -> object:
        """Let the architecture answer."""
        return answer_body(loaded, body, out)

    def write(self, _: Generation, answer: Any) -> tuple[bytes, Headers]:
        """Write the answer as JSON."""
        return orjson.dumps(answer), ((b"content-type", b"application/json"),)

    def error(self, error: WeightshiftError) -> object:
        """Return the error body of every Weightshift service."""
        return error_document(error)


class ModelEndpoint:
    """A bare ASGI application: it is the hot path."""

    def __init__(self, instance: Instance, wire: WireFormat) -> None:
        self._instance = instance
        self._wire = wire
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
        seconds = answer_seconds(scope["headers"], self._settings.answer_timeout)
        until = asyncio.get_running_loop().time() + seconds
        try:
            await pass_gate(self._instance, until)
            generation = self._instance.holder.acquire()
        except (QueueFull, AnswerTooLate) as error:
            is_late = isinstance(error, AnswerTooLate)
            await self._refuse(send, *((504, error, "too_late") if is_late else (503, error, "queue_full")))
            return
        except NotServing as error:
            self._instance.metrics.unready.inc()
            await self._refuse(send, 503, error, "not_serving")
            return
        status, answer = await self._answer(scope, receive, generation, content, until)
        self._instance.metrics.answered(generation, status, time.perf_counter() - started)
        if isinstance(answer, ClientGone):
            return
        if isinstance(answer, WeightshiftError):
            extra = generation.headers if status != 503 else (*generation.headers, self._retry_after)
            await send_json(send, status, self._wire.error(answer), extra)
        else:
            written, headers = answer
            await send_content(send, status, written, (*headers, *generation.headers))

    async def _answer(
        self, scope: Scope, receive: Receive, generation: Generation, content: bytes, until: float
    ) -> tuple[int, tuple[bytes, Headers] | WeightshiftError]:
        """Return status and written answer, or error; the borrowed generation is given back on every path.

        A client that is gone has a status too, because a model that hangs shows itself by nothing else.
        """
        try:
            answer = self._submit(scope, generation, content)
            with ClientWatch(answer, receive):
                async with asyncio.timeout_at(until):
                    given = await answer
            # Here, because what cannot be written is the model's failure too.
            return 200, self._wire.write(generation, given)
        except ClientGone as error:
            return 499, error
        except InvalidInput as error:
            return 400, error
        except (QueueFull, MemoryExhausted) as error:
            self._instance.metrics.rejected("queue_full" if isinstance(error, QueueFull) else "no_memory")
            return 503, error
        except TimeoutError:
            self._instance.metrics.rejected("too_late")
            return 504, AnswerTooLate()
        except Exception:
            _logger.exception("a request failed")
            return 500, WeightshiftError("The model failed; the instance's log says why.")

    def _submit(self, scope: Scope, generation: Generation, content: bytes) -> asyncio.Future[object]:
        try:
            body, rows = self._wire.read(scope, content, generation.loaded)
            return self._instance.executor.submit(generation, body, rows, finish=self._wire.finish)
        except BaseException:
            self._instance.holder.release(generation)
            raise

    async def _refuse(self, send: Send, status: int, error: WeightshiftError, reason: str) -> None:
        self._instance.metrics.rejected(reason)
        headers = [CLOSE] if status != 503 else [CLOSE, self._retry_after]
        await send_json(send, status, self._wire.error(error), headers)


async def pass_gate(instance: Instance, until: float) -> None:
    """Return once no swap in place holds requests back. Raises `QueueFull`, and `AnswerTooLate` at `until`.

    What is held beyond its time counts against what serves, so that whoever judges that misses none of it.
    """
    started = time.perf_counter()
    try:
        await instance.gate.wait(until)
    except AnswerTooLate:
        if (current := instance.holder.current) is not None:
            instance.metrics.answered(current, 504, time.perf_counter() - started)
        raise


def parse_json(content: bytes) -> object:
    """Parse a JSON body. Raises `InvalidInput`."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The body is not JSON: {error.msg}.") from None
