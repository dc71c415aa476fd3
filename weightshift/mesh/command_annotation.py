"""The annotation in which a route carries the last command that was written to it. Pure."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import RouteInvalid

ANNOTATION = "weightshift.dev/command"
_DIGEST_CHARACTERS = 16


class _Written(Message):
    service: str
    fence: Fence
    split: TrafficSplit
    share: int = Field(ge=1)
    digest: str


@dataclass(frozen=True)
class Recorded:
    """What a route's annotation says: the command and the share it divided, and what is wrong with it."""

    state: MeshState | None = None
    share: int | None = None
    problem: str | None = None


def annotation_value(service: Service, split: TrafficSplit, fence: Fence, share: int) -> str:
    """Return the annotation's content. Its digest shows when somebody has edited the rest of it."""
    fields = {
        "service": str(service),
        "fence": fence.model_dump(mode="json"),
        "split": split.model_dump(mode="json"),
        "share": share,
    }
    return json.dumps({**fields, "digest": _digest(fields)}, separators=(",", ":"), sort_keys=True)


def read_annotation(service: Service, stored: dict[str, Any]) -> Recorded:
    """Return what an object's annotation says; nothing where it has none, or where somebody edited it.

    Raises `RouteInvalid` when the object is routed for another service.
    """
    value = stored.get("metadata", {}).get("annotations", {}).get(ANNOTATION)
    if value is None:
        return Recorded()
    try:
        fields = json.loads(value)
        written = _Written.model_validate(fields)
    except (ValueError, ValidationError):
        return Recorded(problem=f"the annotation {ANNOTATION} was edited and cannot be read")
    if written.service != str(service):
        raise RouteInvalid(f"the route belongs to {written.service}; give {service} one of its own")
    del fields["digest"]
    if written.digest != _digest(fields):
        # A fence that anybody could have raised must not keep a rollback out.
        return Recorded(problem=f"the annotation {ANNOTATION} was edited")
    return Recorded(MeshState(split=written.split, fence=written.fence), written.share)


def _digest(fields: dict[str, Any]) -> str:
    content = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGEST_CHARACTERS]
