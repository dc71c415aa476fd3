"""Reading bounded bodies and writing JSON answers over bare ASGI."""

import asyncio
from collections.abc import Sequence

import orjson
from starlette.types import Receive, Scope, Send

from weightshift import errors
from weightshift.errors import InvalidInput, WeightshiftError

Headers = Sequence[tuple[bytes, bytes]]


class BodyTooLarge(InvalidInput):
    """The body is larger than this instance accepts; send less."""


class ClientGone(InvalidInput):
    """The client went away before its request was complete."""


async def read_body(scope: Scope, receive: Receive, *, limit: int, deadline: float) -> bytes:
    """Read a whole body of at most `limit` bytes.

    Raises `BodyTooLarge`, `ClientGone`, and `TimeoutError` after `deadline` seconds.
    """
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if int(declared) > limit:
        raise BodyTooLarge
    content = bytearray()
    async with asyncio.timeout(deadline):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            content += message.get("body", b"")
            if len(content) > limit:
                raise BodyTooLarge
            if not message.get("more_body", False):
                return bytes(content)


async def send_json(send: Send, status: int, document: object, headers: Headers = ()) -> None:
    """Send a JSON answer."""
    await send_content(
        send, status, orjson.dumps(document), ((b"content-type", b"application/json"), *headers)
    )


async def send_content(send: Send, status: int, content: bytes, headers: Headers) -> None:
    """Send an answer; `headers` say what its content is."""
    length = (b"content-length", str(len(content)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": content})


def error_document(error: WeightshiftError) -> dict[str, dict[str, str]]:
    """Return the error body of every Weightshift service, under a name `weightshift.errors` knows."""
    public = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return {"error": {"type": public.__name__, "message": str(error)}}
