"""`POST /generate`: a streaming answer as server-sent events."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

import orjson
from starlette.types import Receive, Scope, Send

from runtime.endpoint import CLOSE, parse_json, pass_gate
from runtime.generation_holder import Generation
from runtime.instance import Instance
from runtime.responses import BodyTooLarge, ClientGone, error_document, read_body, send_json
from runtime.sessions import Event, Session
from runtime.streaming import StreamingArchitecture
from weightshift.errors import (
    AnswerTooLate,
    InvalidInput,
    MemoryExhausted,
    NotServing,
    QueueFull,
    WeightshiftError,
)

_logger = logging.getLogger(__name__)
COMMENT_SECONDS = 15.0
_COMMENT = b": still here\n\n"
_STREAM = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class GenerateEndpoint:
    """A bare ASGI application, because only so a disconnect is noticed while nothing is sent.

    A comment every `comment_seconds` keeps proxies from closing a quiet stream. There is no resumption:
    a client that lost its stream sends the request again.
    """

    def __init__(self, instance: Instance, *, comment_seconds: float = COMMENT_SECONDS) -> None:
        self._instance = instance
        self._settings = instance.settings
        self._comment_seconds = comment_seconds
        self._retry_after = (b"retry-after", str(instance.settings.retry_after).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
            await pass_gate(self._instance, self._latest())
            session = self._begin(content)
        except ClientGone:
            return
        except BodyTooLarge as error:
            await self._refuse(send, 413, error, "too_large")
        except TimeoutError:
            slow = InvalidInput(f"The body did not arrive within {deadline:g} seconds.")
            await self._refuse(send, 408, slow, "too_slow")
        except InvalidInput as error:
            await self._refuse(send, 400, error, "invalid")
        except AnswerTooLate as error:
            await self._refuse(send, 504, error, "too_late")
        except NotServing as error:
            self._instance.metrics.unready.inc()
            await self._refuse(send, 503, error, "not_serving")
        except QueueFull as error:
            await self._refuse(send, 503, error, "queue_full")
        else:
            await self._stream(session, receive, send)

    def _latest(self) -> float:
        """Until when a stream may wait for its beginning, by the event loop's clock."""
        return asyncio.get_running_loop().time() + self._settings.answer_timeout

    def _begin(self, content: bytes) -> Session:
        """Start a session. Raises `InvalidInput`, `NotServing`, `QueueFull`."""
        generation = self._instance.holder.acquire()
        try:
            return self._instance.sessions.submit(generation, _read_prompt(generation, content))
        except BaseException:
            self._instance.holder.release(generation)
            raise

    async def _stream(self, session: Session, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        status = 500
        try:
            headers = [*_STREAM, *session.generation.headers]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            status = await self._forward(session, gone, send)
        finally:
            # Also when nobody listens any more; a session that has ended is not touched by it.
            session.cancel()
            gone.cancel()
            self._instance.metrics.answered(session.generation, status, time.perf_counter() - started)

    async def _forward(self, session: Session, gone: "asyncio.Task[None]", send: Send) -> int:
        """Send events until the last one or until the client is gone; returns the status to count."""
        while True:
            events = await self._next_events(session, gone)
            if gone.done():
                return 200
            body = b"".join(map(_encode, events)) or _COMMENT
            is_last = bool(events) and events[-1].kind != "token"
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})
            if is_last:
                return 200 if events[-1].kind == "done" else _status(events[-1].data)

    async def _next_events(self, session: Session, gone: "asyncio.Task[None]") -> Sequence[Event]:
        """Wait for an event and return all there are; none after a quiet time or a disconnect."""
        coming = asyncio.ensure_future(session.events.get())
        await asyncio.wait((coming, gone), timeout=self._comment_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            with suppress(asyncio.CancelledError):
                await coming
            return ()
        events = [coming.result()]
        while not session.events.empty():
            events.append(session.events.get_nowait())
        return events

    async def _refuse(self, send: Send, status: int, error: WeightshiftError, reason: str) -> None:
        self._instance.metrics.rejected(reason)
        headers = [CLOSE] if status != 503 else [CLOSE, self._retry_after]
        await send_json(send, status, error_document(error), headers)


def _read_prompt(generation: Generation, content: bytes) -> object:
    architecture = generation.loaded.architecture
    if not isinstance(architecture, StreamingArchitecture):
        raise InvalidInput("This model does not stream; use /predict.")
    return architecture.read_prompt(parse_json(content), generation.loaded.resources)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode(event: Event) -> bytes:
    data = error_document(event.data)["error"] if event.kind == "error" else event.data
    return b"event: " + event.kind.encode() + b"\ndata: " + orjson.dumps(data or {}) + b"\n\n"


def _status(error: WeightshiftError) -> int:
    return 503 if isinstance(error, MemoryExhausted | NotServing | QueueFull) else 500
