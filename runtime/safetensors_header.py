"""A safetensors header with torch's types, read under the limits that every artifact is held to."""

from dataclasses import dataclass

import torch

from runtime.recorded_file import Span
from weightshift.artifacts import safetensors_header
from weightshift.contracts.manifest import TensorType

TORCH_TYPES = {
    TensorType.F64: torch.float64,
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
    TensorType.I64: torch.int64,
    TensorType.I32: torch.int32,
    TensorType.I16: torch.int16,
    TensorType.I8: torch.int8,
    TensorType.U8: torch.uint8,
    TensorType.BOOL: torch.bool,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: where its bytes lie, counted from the start of the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class WeightsHeader:
    """The bytes that were parsed, with where they were read, and the tensors in file order."""

    parsed: tuple[Span, ...]
    entries: tuple[TensorEntry, ...]


def read_header(descriptor: int) -> WeightsHeader:
    """Read and check the header of an open safetensors file. Raises `UnsafeArtifact`."""
    header = safetensors_header.read_header(descriptor)
    entries = tuple(
        TensorEntry(entry.name, TORCH_TYPES[entry.dtype], entry.shape, entry.offset, entry.size)
        for entry in header.entries
    )
    return WeightsHeader(parsed=((0, header.content),), entries=entries)
