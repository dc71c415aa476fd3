"""The Open Inference Protocol, version 2, over HTTP: JSON, and the binary tensor data extension.

Tensors are the architecture's raw input rows, before normalisation; the answer holds its output rows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
import torch
from starlette.types import Scope
from torch import Tensor

from runtime.architectures import TensorSpec
from runtime.endpoint import parse_json
from runtime.generation_holder import Generation, LoadedModel
from runtime.responses import Headers
from runtime.wire_types import NUMPY_TYPES
from weightshift.errors import DryRunFailed, InvalidInput, WeightshiftError

_HEADER_LENGTH = b"inference-header-content-length"


@dataclass(frozen=True)
class InferRequest:
    """What has to be repeated or obeyed in the answer."""

    request_id: str | None
    binary_output: bool


def server_metadata(version: str) -> dict[str, Any]:
    """Return the body of `GET /v2`."""
    return {"name": "weightshift", "version": version, "extensions": ["binary_tensor_data"]}


def model_metadata(generation: Generation) -> dict[str, Any]:
    """Return the body of `GET /v2/models/MODEL`."""
    architecture = generation.loaded.architecture
    return {
        "name": generation.target.service.model,
        "versions": [str(generation.revision)],
        "platform": "pytorch_weightshift",
        "inputs": [_describe(spec) for spec in architecture.inputs],
        "outputs": [_describe(spec) for spec in architecture.outputs],
    }


class OpenInferenceFormat:
    """`POST /v2/models/MODEL/infer`."""

    def read(self, scope: Scope, content: bytes, loaded: LoadedModel) -> tuple[InferRequest, Tensor]:
        """Return what to obey, and normalised rows. Raises `InvalidInput`."""
        document, binary = _split(scope, content)
        spec = loaded.architecture.inputs[0]
        rows = _read_input(document, spec, binary)
        request = InferRequest(
            request_id=_checked(document.get("id"), str, "id"),
            binary_output=_wants_binary(document, loaded.architecture.outputs[0].name),
        )
        return request, loaded.architecture.normalise(rows, loaded.resources)

    def finish(self, loaded: LoadedModel, body: InferRequest, out: Tensor) -> object:
        """Return the request with its output rows. Raises `DryRunFailed` when they are not finite."""
        if not bool(torch.isfinite(out).all()):
            raise DryRunFailed(f"{loaded.architecture.outputs[0].name} are not finite.")
        return body, out

    def write(self, generation: Generation, answer: Any) -> tuple[bytes, Headers]:
        """Write the output as JSON, or as JSON followed by its bytes."""
        request, out = answer
        spec = generation.loaded.architecture.outputs[0]
        output: dict[str, Any] = {"name": spec.name, "shape": list(out.shape), "datatype": _type(spec)}
        document = {
            "model_name": generation.target.service.model,
            "model_version": str(generation.revision),
            "outputs": [output],
            **({} if request.request_id is None else {"id": request.request_id}),
        }
        values = out.numpy()
        if not request.binary_output:
            output["data"] = values.ravel().tolist()
            return orjson.dumps(document), ((b"content-type", b"application/json"),)
        tail = values.tobytes()
        output["parameters"] = {"binary_data_size": len(tail)}
        head = orjson.dumps(document)
        length = (_HEADER_LENGTH, str(len(head)).encode())
        return head + tail, ((b"content-type", b"application/octet-stream"), length)

    def error(self, error: WeightshiftError) -> object:
        """Return an error as the protocol spells it."""
        return {"error": str(error)}


def _type(spec: TensorSpec) -> str:
    return NUMPY_TYPES[spec.dtype][0]


def _describe(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": _type(spec), "shape": [-1, *spec.shape]}


def _split(scope: Scope, content: bytes) -> tuple[dict[str, Any], bytes | None]:
    """Return the JSON part, and what follows it if a header says that something does."""
    given = next((value for name, value in scope["headers"] if name == _HEADER_LENGTH), None)
    binary = None
    if given is not None:
        if not given.isdigit() or len(given) > 10 or int(given) > len(content):
            raise InvalidInput("inference-header-content-length is not a length within the body.")
        content, binary = content[: int(given)], content[int(given) :]
    document = parse_json(content)
    if not isinstance(document, dict):
        raise InvalidInput("The body must be a JSON object with inputs.")
    if unknown := sorted(set(document) - {"id", "parameters", "inputs", "outputs"}):
        raise InvalidInput(f"The body holds an unknown field {unknown[0][:100]!r}; leave it out.")
    return document, binary


def _read_input(document: Mapping[str, Any], spec: TensorSpec, binary: bytes | None) -> Tensor:
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise InvalidInput(f"inputs must be a list of one tensor, {spec.name!r}.")
    given = inputs[0]
    if given.get("name") != spec.name or given.get("datatype") != _type(spec):
        raise InvalidInput(f"inputs[0] must be {spec.name!r} of datatype {_type(spec)}.")
    shape = given.get("shape")
    if not isinstance(shape, list) or not all(
        type(length) is int and 0 < length < 1 << 31 for length in shape
    ):
        raise InvalidInput("inputs[0].shape must be a list of whole numbers above 0.")
    if tuple(shape[1:]) != spec.shape or not shape:
        raise InvalidInput(f"inputs[0].shape must be {[-1, *spec.shape]}, with any number of rows.")
    size = _parameters(given, "inputs[0]").get("binary_data_size")
    values = _from_json(given, shape, spec) if size is None else _from_bytes(binary, size, shape, spec)
    return torch.from_numpy(values.reshape(shape))


def _from_bytes(binary: bytes | None, size: object, shape: list[int], spec: TensorSpec) -> Any:
    kind = np.dtype(NUMPY_TYPES[spec.dtype][1])
    if binary is None or type(size) is not int or not size == len(binary) == math.prod(shape) * kind.itemsize:
        raise InvalidInput("inputs[0].parameters.binary_data_size is not the bytes that its shape needs.")
    if kind.kind == "b" and not set(binary) <= {0, 1}:
        raise InvalidInput("inputs[0] holds a byte that is no BOOL, which is 0 or 1.")
    # Torch wants memory of its own that it may write to.
    return np.frombuffer(binary, dtype=kind).copy()


def _from_json(given: Mapping[str, Any], shape: list[int], spec: TensorSpec) -> Any:
    flat = given.get("data")
    if not isinstance(flat, list):
        raise InvalidInput("inputs[0].data must be a list of values.")
    for length in shape[:-1]:
        # Nested as the shape is, or flat.
        if len(flat) == length and all(isinstance(part, list) for part in flat):
            flat = list(chain.from_iterable(flat))
    if spec.dtype == torch.bool:
        allowed: set[type] = {bool}
    else:
        allowed = {int, float} if spec.dtype.is_floating_point else {int}
    if len(flat) != math.prod(shape) or not set(map(type, flat)) <= allowed:
        kind = "booleans" if spec.dtype == torch.bool else "numbers"
        raise InvalidInput(f"inputs[0].data must hold {math.prod(shape)} {kind} of its datatype.")
    try:
        # What overflows a floating-point type becomes infinite and is refused by its range.
        with np.errstate(over="ignore"):
            return np.array(flat, dtype=NUMPY_TYPES[spec.dtype][1])
    except OverflowError:
        raise InvalidInput("inputs[0].data holds a number that is too large for its datatype.") from None


def _wants_binary(document: Mapping[str, Any], name: str) -> bool:
    outputs = document.get("outputs", [])
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise InvalidInput("outputs must be a list of objects.")
    if len(outputs) > 1 or any(output.get("name") != name for output in outputs):
        raise InvalidInput(f"outputs may hold {name!r} alone.")
    everywhere = _parameters(document, "the body").get("binary_data_output", False)
    wanted = everywhere
    for output in outputs:
        wanted = _parameters(output, "outputs[0]").get("binary_data", everywhere)
    return bool(_checked(wanted, bool, "binary_data"))


def _parameters(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = part.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidInput(f"parameters of {where} must be an object.")
    return parameters


def _checked(value: Any, kind: type, field: str) -> Any:
    if value is not None and type(value) is not kind:
        raise InvalidInput(f"{field} must be of type {kind.__name__}.")
    return value
