"""Which tensors an artifact's weight files hold, for its manifest."""

import io
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path

from pydantic import ValidationError

from weightshift.artifacts.files import open_file
from weightshift.artifacts.safetensors_header import read_header
from weightshift.artifacts.state_dict_header import read_state_dict
from weightshift.contracts.base import describe_problems
from weightshift.contracts.manifest import MAX_TENSORS, ManifestTensor, WeightFormat
from weightshift.errors import UnsafeArtifact

_SUFFIXES = {WeightFormat.SAFETENSORS: (".safetensors",), WeightFormat.STATE_DICT: (".pt", ".pth")}


def read_tensors(
    directory: Path, paths: Iterable[str], runtime: WeightFormat
) -> tuple[ManifestTensor, ...] | None:
    """Return the tensors of all weight files by name; None when no file has the format's suffix.

    Reads headers only. Raises `UnsafeArtifact` for what no runtime would load.
    """
    weights = [path for path in paths if path.endswith(_SUFFIXES[runtime])]
    found: dict[str, ManifestTensor] = {}
    for path in weights:
        with open_file(directory, path) as file:
            for tensor in _tensors(file, path, runtime):
                if tensor.name in found or len(found) == MAX_TENSORS:
                    raise UnsafeArtifact(
                        f"{path!r} holds tensor {tensor.name[:100]!r} again, or more than {MAX_TENSORS} "
                        "tensors are in the artifact; save each tensor once."
                    )
                found[tensor.name] = tensor
    return tuple(found[name] for name in sorted(found)) if weights else None


def _tensors(file: FileIO, path: str, runtime: WeightFormat) -> Iterator[ManifestTensor]:
    try:
        if runtime is WeightFormat.SAFETENSORS:
            for entry in read_header(file.fileno()).entries:
                yield ManifestTensor(name=entry.name, dtype=entry.dtype, shape=entry.shape)
        else:
            with io.BufferedReader(file) as source:
                stored = read_state_dict(source)
            for name, tensor in stored.items():
                yield ManifestTensor(name=name, dtype=tensor.dtype, shape=tensor.shape)
    except UnsafeArtifact as error:
        raise UnsafeArtifact(f"{path!r} cannot be in an artifact. {error}") from error
    except ValidationError as error:
        raise UnsafeArtifact(
            f"{path!r} holds a tensor that no manifest can name: {describe_problems(error)}."
        ) from error
