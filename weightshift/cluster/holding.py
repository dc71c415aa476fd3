"""Raising a number in an object for a while, and putting it back. Pure.

An annotation keeps what the number was, and the fence of whoever raised it, in the object itself.
"""

import json
from typing import Any

from pydantic import ValidationError

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Fence
from weightshift.errors import StaleFence

Object = dict[str, Any]
Operation = dict[str, Any]

ANNOTATION = "weightshift.dev/held"


class Held(Message):
    """What was set before, and what is set now; None once it was put back."""

    fence: Fence
    before: int | None = None
    now: int | None = None


def raise_to(stored: Object, field: str, wanted: int, fence: Fence, *, default: int = 1) -> list[Operation]:
    """Return the JSON patch that sets a number of the spec to at least `wanted`. Raises `StaleFence`."""
    held = _held(stored, fence)
    current = int(stored["spec"].get(field, default))
    now = max(current, wanted)
    before = held.before if held is not None and held.before is not None else current
    record = Held(fence=fence, before=before, now=now)
    if held == record and now == current:
        return []
    return [*_set(field, current, now), *_annotate(stored, record)]


def put_back(stored: Object, field: str, fence: Fence, *, default: int = 1) -> list[Operation]:
    """Return the JSON patch that sets the number as it was. Raises `StaleFence`.

    A number that somebody else has changed since is theirs and stays.
    """
    held = _held(stored, fence)
    if held is None or held.before is None:
        return []
    current = int(stored["spec"].get(field, default))
    after = held.before if current == held.now else current
    return [*_set(field, current, after), *_annotate(stored, Held(fence=fence))]


def was_before(stored: Object) -> int | None:
    """Return what the number was before it was raised; None where it is not raised, or that is unknown."""
    held = _read(stored)
    return held.before if held else None


def _held(stored: Object, fence: Fence) -> Held | None:
    held = _read(stored)
    if held is not None and fence < held.fence:
        raise StaleFence(f"fence {fence} is older than the accepted {held.fence}; it changes nothing")
    return held


def _read(stored: Object) -> Held | None:
    """Return the annotation; one that was spoilt says nothing, so that nothing is put back by it."""
    try:
        return Held.model_validate(json.loads(stored["metadata"]["annotations"][ANNOTATION]))
    except (KeyError, TypeError, ValueError, ValidationError):
        return None


def _set(field: str, current: int, wanted: int) -> list[Operation]:
    return [] if current == wanted else [{"op": "add", "path": f"/spec/{field}", "value": wanted}]


def _annotate(stored: Object, held: Held) -> list[Operation]:
    value = held.model_dump_json()
    if stored["metadata"].get("annotations") is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {ANNOTATION: value}}]
    return [{"op": "add", "path": "/metadata/annotations/" + ANNOTATION.replace("/", "~1"), "value": value}]
