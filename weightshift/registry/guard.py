"""What stands before every route: the token, the size of a body, and errors without internals."""

import logging

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weightshift import errors
from weightshift.errors import Conflict, InvalidInput, Unauthorised, Unreachable, WeightshiftError
from weightshift.registry.refusals import RefusalRecorder
from weightshift.registry.tokens import Grant, TokenStore

BODY_LIMIT = 256 * 1024
OPEN_PATH = "/healthz"
"""The only path that needs no token, and only for GET."""

_logger = logging.getLogger(__name__)


class MissingToken(Unauthorised):
    """No valid token came with the request; send `Authorization: Bearer TOKEN`."""


class NoSuchRoute(InvalidInput):
    """There is no such route or method; see /openapi.json."""


class BodyTooLarge(InvalidInput):
    """The body is larger than 256 KiB; send less."""


_STATUSES: tuple[tuple[type[WeightshiftError], int], ...] = (
    (MissingToken, 401),
    (Unauthorised, 403),
    (BodyTooLarge, 413),
    (NoSuchRoute, 404),
    (errors.UnknownApproval, 404),
    (errors.UnknownArtifact, 404),
    (errors.UnknownService, 404),
    (InvalidInput, 400),
    (Conflict, 409),
    (Unreachable, 503),
)


def status_of(error: WeightshiftError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def error_body(error: WeightshiftError) -> bytes:
    """Return an error as JSON, under a name that `weightshift.errors` knows."""
    public = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return orjson.dumps({"error": {"type": public.__name__, "message": str(error)}})


class Guard:
    """Outermost layer of the application; refuses whatever it does not know.

    A checked request carries its `Grant` in the scope's state, under `grant`.
    """

    def __init__(self, app: ASGIApp, *, tokens: TokenStore, refusals: RefusalRecorder) -> None:
        self._app = app
        self._tokens = tokens
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or the error it met."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if (scope["method"], scope["path"]) != ("GET", OPEN_PATH):
                scope.setdefault("state", {})["grant"] = await self._authenticate(scope)
            await self._app(scope, _bounded(scope, receive), noting_send)
        except WeightshiftError as error:
            if started:
                raise
            await self._note_refusal(scope, error)
            await _send_error(send, error)
        except Exception:
            if started:
                raise
            _logger.exception("A request failed: %s %s", scope["method"], scope["path"])
            await _send_error(send, WeightshiftError("The registry failed; its log says why."))

    async def _note_refusal(self, scope: Scope, error: WeightshiftError) -> None:
        """Note who tried what; the path is quoted, because it is whatever the client sent."""
        if not isinstance(error, InvalidInput):
            return
        grant: Grant | None = scope.get("state", {}).get("grant")
        _logger.warning(
            "Refused %s %r of %s: %s",
            scope["method"],
            scope["path"],
            grant.subject if grant else "nobody",
            type(error).__name__,
        )
        if grant:
            await self._refusals.record(grant, method=scope["method"], path=scope["path"], error=error)

    async def _authenticate(self, scope: Scope) -> Grant:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = header.decode("latin-1").partition(" ")
        grant = await self._tokens.grant(token) if scheme.lower() == "bearer" else None
        if grant is None:
            raise MissingToken
        return grant


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """Count the body's bytes as they arrive, and believe a declared length that is too large.

    The server discards what is left of a refused body, so that its client gets to read the answer.
    """
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    received = 0

    async def bounded_receive() -> Message:
        nonlocal received
        # Before anything is read: reading invites a client that asked first (Expect) to send it all.
        if declared.isdigit() and int(declared) > BODY_LIMIT:
            raise BodyTooLarge
        message = await receive()
        received += len(message.get("body", b""))
        if received > BODY_LIMIT:
            raise BodyTooLarge
        return message

    return bounded_receive


async def _send_error(send: Send, error: WeightshiftError) -> None:
    body = error_body(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, MissingToken):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, Unreachable):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "http.response.body", "body": body})
