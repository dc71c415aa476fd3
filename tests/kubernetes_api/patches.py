"""The two kinds of patch that the adapters and their opponents send."""

import copy
from typing import Any


class PatchError(ValueError):
    """The patch does not apply to the object."""


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply an RFC 7386 merge patch."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def json_patch(target: Any, operations: list[dict[str, Any]]) -> Any:
    """Apply an RFC 6902 patch: `add`, `replace`, `remove` and `test`. Raises `PatchError`."""
    patched = copy.deepcopy(target)
    for operation in operations:
        _apply(patched, operation)
    return patched


def _apply(document: Any, operation: dict[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    node = document
    try:
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        if isinstance(node, list):
            _apply_to_list(node, last, operation)
        else:
            _apply_to_object(node, last, operation)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PatchError(f"{operation['op']} {operation['path']}: {error}") from error


def _apply_to_list(node: list[Any], last: str, operation: dict[str, Any]) -> None:
    kind, index = operation["op"], len(node) if last == "-" else int(last)
    if index > len(node) or (kind != "add" and index == len(node)):
        raise IndexError(last)
    if kind == "add":
        node.insert(index, copy.deepcopy(operation["value"]))
    elif kind == "remove":
        del node[index]
    elif kind == "replace":
        node[index] = copy.deepcopy(operation["value"])
    elif node[index] != operation["value"]:
        raise ValueError("the test failed")


def _apply_to_object(node: dict[str, Any], last: str, operation: dict[str, Any]) -> None:
    kind = operation["op"]
    if kind != "add" and last not in node:
        raise KeyError(last)
    if kind == "remove":
        del node[last]
    elif kind in ("add", "replace"):
        node[last] = copy.deepcopy(operation["value"])
    elif node[last] != operation["value"]:
        raise ValueError("the test failed")
