"""Strict reading of a safetensors header, before anything of its size is allocated.

The public library accepts headers that cost seconds and hundreds of megabytes, so the limits here
come first. No tensor's bytes are read.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

from weightshift.artifacts.strict_json import parse_strict
from weightshift.contracts.manifest import MAX_RANK, MAX_TENSORS, TensorType
from weightshift.errors import UnsafeArtifact

MAX_HEADER_BYTES = 1 << 20
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: where its bytes lie, counted from the start of the file."""

    name: str
    dtype: TensorType
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class WeightsHeader:
    """The header's exact bytes with their length prefix, and the tensors in file order."""

    content: bytes
    entries: tuple[TensorEntry, ...]


def read_header(descriptor: int) -> WeightsHeader:
    """Read and check the header of an open safetensors file. Raises `UnsafeArtifact`."""
    file_size = os.fstat(descriptor).st_size
    prefix = os.pread(descriptor, _LENGTH_BYTES, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _LENGTH_BYTES or not 2 <= length <= min(MAX_HEADER_BYTES, file_size - _LENGTH_BYTES):
        raise UnsafeArtifact(f"The weights' header is empty, cut or larger than {MAX_HEADER_BYTES} bytes.")
    header = os.pread(descriptor, length, _LENGTH_BYTES)
    document = _parse(header)
    _check_metadata(document.pop("__metadata__", {}))
    if len(document) > MAX_TENSORS:
        raise UnsafeArtifact(f"The weights hold {len(document)} tensors; the limit is {MAX_TENSORS}.")
    start = _LENGTH_BYTES + length
    entries = sorted(
        (_entry(name, fields, start) for name, fields in document.items()),
        key=lambda entry: (entry.offset, entry.size),
    )
    _check_contiguous(entries, start, file_size)
    return WeightsHeader(content=prefix + header, entries=tuple(entries))


def _parse(header: bytes) -> dict[str, Any]:
    if not header.startswith(b"{"):
        raise UnsafeArtifact("The weights' header does not start with a brace.")
    try:
        document = parse_strict(header)
    except ValueError:
        raise UnsafeArtifact("The weights' header is not strict JSON.") from None
    if not isinstance(document, dict):
        raise UnsafeArtifact("The weights' header is not a JSON object.")
    return document


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UnsafeArtifact("The weights' __metadata__ holds something other than strings.")


def _entry(name: str, fields: object, start: int) -> TensorEntry:
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest}:
            well_formed = not rest and dtype in set(TensorType) and len(shape) <= MAX_RANK
            well_formed = well_formed and all(type(length) is int and length >= 0 for length in shape)
        case _:
            well_formed = False
    if not well_formed:
        raise UnsafeArtifact(f"Tensor {name[:100]!r} has a malformed entry in the weights' header.")
    element = TensorType(dtype)
    if not 0 <= begin <= end or end - begin != math.prod(shape) * element.bytes:
        raise UnsafeArtifact(f"Tensor {name[:100]!r} does not occupy the bytes its shape needs.")
    return TensorEntry(name, element, tuple(shape), start + begin, end - begin)


def _check_contiguous(entries: list[TensorEntry], start: int, file_size: int) -> None:
    position = start
    for entry in entries:
        if entry.offset != position:
            raise UnsafeArtifact(f"Tensor {entry.name[:100]!r} overlaps another one or leaves a gap.")
        position += entry.size
    if position != file_size:
        raise UnsafeArtifact("The weights' tensors do not end where the file does.")
