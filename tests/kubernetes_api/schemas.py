"""What an API server does with an object by its schema: prune, fill in defaults, validate."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import cel
from jsonschema import Draft202012Validator

_CRDS = Path(__file__).parent / "crds"
_RULES = "x-kubernetes-validations"
_OBJECT = {"apiVersion", "kind", "metadata", "status"}


class ResourceKind:
    """One custom resource: where it is served, and what its schema says of an object."""

    def __init__(self, definition: dict[str, Any]) -> None:
        self.kind: str = definition["kind"]
        self.api_version = f"{definition['group']}/{definition['version']}"
        self.plural: str = definition["plural"]
        self._schema = definition["schema"]
        self._validator = Draft202012Validator(_json_schema(self._schema))

    def admit(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the object as it would be stored. Raises `ValueError` naming what is invalid."""
        stored = copy.deepcopy(document)
        spec = self._schema["properties"]["spec"]
        stored["spec"] = _filled(_pruned(stored.get("spec", {}), spec), spec)
        problems = [
            f"{'.'.join(str(part) for part in problem.absolute_path)}: {problem.message}"
            for problem in self._validator.iter_errors({"spec": stored["spec"]})
        ]
        problems += _broken_rules(stored["spec"], spec, "spec")
        if problems:
            raise ValueError("; ".join(problems))
        return stored


@cache
def resource_kind(plural: str) -> ResourceKind:
    """Return a custom resource by its plural: `virtualservices`, `destinationrules`, `httproutes`."""
    return ResourceKind(json.loads((_CRDS / f"{plural}.json").read_text()))


def custom_resources() -> dict[str, ResourceKind]:
    """Return every custom resource there is, by its plural."""
    return {path.stem: resource_kind(path.stem) for path in _CRDS.glob("*.json")}


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Translate what the two dialects say differently: null values, and integers that may be strings."""
    translated: dict[str, Any] = {}
    for name, value in schema.items():
        if isinstance(value, dict):
            translated[name] = _json_schema(value)
        elif isinstance(value, list):
            translated[name] = [_json_schema(one) if isinstance(one, dict) else one for one in value]
        else:
            translated[name] = value
    if schema.get("nullable") is True and isinstance(schema.get("type"), str):
        translated["type"] = [schema["type"], "null"]
        if "enum" in translated:
            translated["enum"] = [*translated["enum"], None]
    if schema.get("x-kubernetes-int-or-string") is True:
        translated.pop("type", None)
        translated["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return translated


def _pruned(value: Any, schema: dict[str, Any]) -> Any:
    """Drop the fields that the schema does not know."""
    if isinstance(value, list):
        return [_pruned(one, schema.get("items", {})) for one in value]
    if not isinstance(value, dict) or "properties" not in schema:
        additional = schema.get("additionalProperties")
        if isinstance(value, dict) and isinstance(additional, dict):
            return {name: _pruned(one, additional) for name, one in value.items()}
        return value
    known = schema["properties"]
    keep = schema.get("x-kubernetes-preserve-unknown-fields") is True
    return {name: _pruned(one, known.get(name, {})) for name, one in value.items() if name in known or keep}


def _filled(value: Any, schema: dict[str, Any]) -> Any:
    """Fill in the schema's defaults."""
    if isinstance(value, list):
        return [_filled(one, schema.get("items", {})) for one in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, known in schema.get("properties", {}).items():
        if name not in filled and "default" in known:
            filled[name] = copy.deepcopy(known["default"])
        if name in filled:
            filled[name] = _filled(filled[name], known)
    return filled


@cache
def _program(rule: str) -> Any:
    return cel.compile(rule)


def _broken_rules(value: Any, schema: dict[str, Any], path: str) -> list[str]:
    """Evaluate the schema's own rules on a value and on everything in it."""
    broken = []
    for one in schema.get(_RULES, []):
        if "oldSelf" in one["rule"]:
            continue
        if not _program(one["rule"]).execute({"self": value}):
            broken.append(f"{path}: {one.get('message', one['rule'])}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            broken += _broken_rules(item, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            known = schema.get("properties", {}).get(name)
            if known is not None:
                broken += _broken_rules(item, known, f"{path}.{name}")
    return broken
