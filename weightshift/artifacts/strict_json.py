"""JSON with one reading only: UTF-8, no key twice, no NaN; what is signed or hashed must mean one thing."""

import json
from typing import Any


def parse_strict(content: bytes) -> Any:
    """Parse a document whose size the caller has bounded. Raises `ValueError` saying what is wrong."""
    try:
        return json.loads(
            content.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key occurs twice")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
