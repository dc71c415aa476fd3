"""Architectures whose tensors are not numbers of the usual kinds, over the Open Inference Protocol."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
import torch
from torch import Tensor

from runtime.architectures import Ranker, TensorSpec
from runtime.generation_holder import Generation
from runtime.open_inference import OpenInferenceFormat, model_metadata
from weightshift.errors import InvalidInput

MakeGeneration = Callable[..., Generation]
HEADER = b"inference-header-content-length"


class Flags(Ranker):
    """Takes two flags and returns one, per row."""

    inputs: tuple[TensorSpec, ...] = (TensorSpec("flags", (2,), torch.bool),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("flag", (), torch.bool),)

    def normalise(self, rows: Tensor, resources: Any) -> Tensor:
        return rows


@pytest.fixture
def generation(make_generation: MakeGeneration) -> Generation:
    whole = make_generation()
    return make_generation(loaded=replace(whole.loaded, architecture=Flags()))


def read(generation: Generation, tail: bytes | None = None, **tensor: Any) -> tuple[Any, Tensor]:
    given = {"name": "flags", "shape": [2, 2], "datatype": "BOOL", **tensor}
    head = orjson.dumps({"inputs": [given]})
    headers = [] if tail is None else [(HEADER, str(len(head)).encode())]
    return OpenInferenceFormat().read({"headers": headers}, head + (tail or b""), generation.loaded)


def test_booleans_come_as_json_or_as_bytes_and_go_back(generation: Generation) -> None:
    assert model_metadata(generation)["inputs"] == [{"name": "flags", "datatype": "BOOL", "shape": [-1, 2]}]
    wanted = torch.tensor([[True, False], [False, True]])
    _, rows = read(generation, data=[[True, False], [False, True]])
    assert torch.equal(rows, wanted)
    request, rows = read(generation, b"\1\0\0\1", parameters={"binary_data_size": 4})
    assert torch.equal(rows, wanted)
    answer = OpenInferenceFormat().finish(generation.loaded, request, rows.any(dim=1))
    content, _ = OpenInferenceFormat().write(generation, answer)
    (output,) = orjson.loads(content)["outputs"]
    assert (output["datatype"], output["data"]) == ("BOOL", [True, True])


def test_what_is_no_boolean_is_refused(generation: Generation) -> None:
    with pytest.raises(InvalidInput, match="4 booleans"):
        read(generation, data=[1, 0, 0, 1])
    with pytest.raises(InvalidInput, match="0 or 1"):
        read(generation, b"\1\0\0\2", parameters={"binary_data_size": 4})
