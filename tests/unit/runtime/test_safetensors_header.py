import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from runtime.safetensors_header import WeightsHeader, read_header
from weightshift.errors import UnsafeArtifact

Read = Callable[[bytes], WeightsHeader]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_bytes(content: bytes) -> WeightsHeader:
        path = tmp_path / "weights"
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return read_header(descriptor)
        finally:
            os.close(descriptor)

    return read_bytes


def encoded(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(**changes: object) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_the_public_writer_is_understood(read: Read) -> None:
    tensors = {
        "a": torch.zeros(2, 3),
        "b": torch.zeros(4, dtype=torch.int64),
        "c": torch.zeros((), dtype=torch.bfloat16),
    }
    content = save(tensors, metadata={"format": "pt"})
    header = read(content)
    assert {item.name: (item.dtype, item.shape) for item in header.entries} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()
    }
    ((start, parsed),) = header.parsed
    assert start == 0
    assert content.startswith(parsed)
    assert sum(item.size for item in header.entries) == len(content) - len(parsed)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        struct.pack("<Q", 0),
        struct.pack("<Q", 1 << 62) + b"{}",
        encoded(b" {}"),
        encoded(b"[]"),
        encoded(b'{"a": NaN}'),
        encoded(b"{" * 5000),
        encoded(b'{"a":' * 100_000),
        encoded(b'{"a": {"dtype":"F32","shape":[0],"data_offsets":[0,0]}, "a": 1}'),
        encoded({"__metadata__": {"a": 1}}),
        encoded({"a": entry(dtype="F4")}, bytes(8)),
        encoded({"a": entry(dtype=["F32"])}, bytes(8)),
        encoded({"a": entry(shape=[-2])}, bytes(8)),
        encoded({"a": entry(shape=[2.0])}, bytes(8)),
        encoded({"a": entry(shape=[True, 2])}, bytes(8)),
        encoded({"a": entry(shape=[1] * 9)}, bytes(8)),
        encoded({"a": entry(shape=[3])}, bytes(8)),
        encoded({"a": entry(shape=[0, 1 << 60])}, bytes(8)),
        encoded({"a": entry(data_offsets=[8, 0])}, bytes(8)),
        encoded({"a": entry(data_offsets=[0])}, bytes(8)),
        encoded({"a": entry(extra=1)}, bytes(8)),
        encoded({"a": 1}, bytes(8)),
        encoded({"a": entry()}, bytes(9)),
        encoded({"a": entry()}, bytes(7)),
        encoded({"a": entry(), "b": entry()}, bytes(8)),
        encoded({"a": entry(), "b": entry(data_offsets=[4, 12])}, bytes(12)),
        encoded({"a": entry(), "b": entry(data_offsets=[9, 17])}, bytes(17)),
        encoded({str(number): entry(shape=[0], data_offsets=[0, 0]) for number in range(10_001)}),
        encoded(b'{"a": "' + b"x" * (1 << 20) + b'"}'),
    ],
)
def test_an_unsafe_header_is_refused(read: Read, content: bytes) -> None:
    with pytest.raises(UnsafeArtifact):
        read(content)


@settings(deadline=None)
@given(content=st.binary(max_size=64), prefixed=st.booleans())
def test_no_bytes_at_all_break_the_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, prefixed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed-weights"
    path.write_bytes(encoded(content) if prefixed else content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        read_header(descriptor)
    except UnsafeArtifact:
        pass
    finally:
        os.close(descriptor)
