import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from weightshift.contracts.manifest import Manifest, ManifestFile, Precision, WeightFormat

Tensors = Mapping[str, tuple[str, list[int], int]]


def safetensors(tensors: Tensors) -> bytes:
    """Return a file of zeros; each tensor is given by its type, shape and size in bytes."""
    header, position = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    content = json.dumps(header).encode()
    return len(content).to_bytes(8, "little") + content + bytes(position)


@pytest.fixture
def write_weights(tmp_path: Path) -> Callable[[str, Tensors], None]:
    def write(name: str, tensors: Tensors) -> None:
        (tmp_path / name).write_bytes(safetensors(tensors))

    return write


@pytest.fixture
def manifest() -> Manifest:
    return Manifest(
        model="ranker",
        artifact_id="v41",
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="features-1",
        precision=Precision.FP32,
        files=(
            ManifestFile(path="weights.safetensors", sha256="a" * 64, bytes=9),
            ManifestFile(path="config.json", sha256="b" * 64, bytes=2),
        ),
    )
