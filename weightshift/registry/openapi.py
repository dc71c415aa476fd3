"""The description of the HTTP service, generated from its routes and their types. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from weightshift.registry.endpoint import Endpoint

_PARAMETER = re.compile(r"{(\w+)}")
_TEMPLATE = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}


def describe(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI document of these endpoints."""
    endpoints = tuple(endpoints)
    models = {model for one in endpoints for model in (one.body, one.answer, one.query) if model}
    ordered = sorted(models, key=lambda model: model.__name__)
    references, schemas = models_json_schema(
        [(model, "validation") for model in ordered], ref_template=_TEMPLATE
    )
    names = {model: reference for (model, _), reference in references.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, names, schemas["$defs"])
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weightshift registry", "version": "1"},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**schemas["$defs"], "Error": _ERROR},
        },
    }


def _operation(
    endpoint: Endpoint, names: Mapping[Any, dict[str, Any]], schemas: dict[str, Any]
) -> dict[str, Any]:
    roles = ", ".join(endpoint.roles)
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "description": f"For tokens of role {roles}.",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(endpoint.path)
        ],
        "responses": {"default": _content({"$ref": _TEMPLATE.format(model="Error")}, "Refused or failed")},
    }
    if endpoint.query is not None:
        schema = schemas[names[endpoint.query]["$ref"].rpartition("/")[2]]
        operation["parameters"] += [
            {"name": name, "in": "query", "schema": field} for name, field in schema["properties"].items()
        ]
    if endpoint.body is not None:
        operation["requestBody"] = {**_content(names[endpoint.body], "What is sent"), "required": True}
    if endpoint.answer is not None:
        operation["responses"]["200"] = _content(names[endpoint.answer], "Done")
    return operation


def _content(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
