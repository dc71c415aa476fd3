"""What Prometheus answers instead of samples, in our words."""

import json
from http import HTTPStatus

import requests

from weightshift.errors import MetricsUnreachable, QueryRefused

_MOST_CHARACTERS = 300


def raise_for_error(response: requests.Response, *_: object, **__: object) -> None:
    """Raise `QueryRefused` or `MetricsUnreachable` for an error, with what it says; a hook of a session."""
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return
    words = _words(response.content)
    # 422 says that it failed, for want of memory for instance, and not that the query is wrong.
    if words and response.status_code == HTTPStatus.BAD_REQUEST:
        raise QueryRefused(f"Prometheus refuses the query: {words}")
    said = f": {words}" if words else ""
    raise MetricsUnreachable(f"Prometheus did not answer: HTTP {response.status_code}{said}")


def _words(body: bytes) -> str:
    """Return Prometheus' own words in one line; none where something else has answered in its place."""
    try:
        answer = json.loads(body)
    except ValueError:
        return ""
    error = answer.get("error") if isinstance(answer, dict) else None
    words = " ".join(error.split()) if isinstance(error, str) else ""
    return words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]} ..."
