import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from runtime.architectures import Ranker, RankerNetwork
from runtime.generation_holder import Generation, LoadedModel
from weightshift.artifacts.base import blob_key, manifest_key
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import Manifest, ManifestFile, Precision, WeightFormat
from weightshift.contracts.target import Target
from weightshift.errors import UnknownArtifact

HIDDEN = (8, 4)


class DictStore:
    """An object store in a dictionary; `chunk_bytes` small enough that files come in pieces."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def uri(self, key: str) -> str:
        return f"memory:///{key}"

    def exists(self, key: str) -> bool:
        return key in self.objects

    def put_bytes(self, key: str, content: bytes) -> None:
        self.objects.setdefault(key, content)

    def put_file(self, key: str, path: Path, *, progress: Callable[[int], None] | None = None) -> None:
        self.put_bytes(key, path.read_bytes())

    def stream(self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0) -> Iterator[bytes]:
        if key not in self.objects:
            raise UnknownArtifact
        content = self.objects[key]
        for start in range(offset, len(content), 512):
            yield content[start : start + 512]


class ArtifactBuilder:
    """Writes ranker artifacts into a store; every part can be replaced by a broken one."""

    def __init__(self, store: DictStore) -> None:
        self.store = store

    def weights(self, seed: int = 1, hidden: tuple[int, ...] = HIDDEN) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return {name: value.detach().clone() for name, value in RankerNetwork(hidden).state_dict().items()}

    def push(
        self,
        artifact_id: str = "v1",
        *,
        seed: int = 1,
        weights: dict[str, Tensor] | bytes | None = None,
        files: dict[str, bytes] | None = None,
        **fields: Any,
    ) -> Manifest:
        tensors = self.weights(seed) if weights is None else weights
        content = {
            "model.safetensors": tensors if isinstance(tensors, bytes) else save(tensors),
            "config.json": json.dumps({"hidden": list(HIDDEN)}).encode(),
            "normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [1.0] * 88}).encode(),
            **(files or {}),
        }
        manifest = Manifest(
            **{
                "model": "ranker",
                "artifact_id": artifact_id,
                "runtime": WeightFormat.SAFETENSORS,
                "feature_schema": "ranker-v1",
                "precision": Precision.FP32,
                "files": tuple(
                    ManifestFile(path=path, sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))
                    for path, body in content.items()
                ),
                **fields,
            }
        )
        for body in content.values():
            self.store.put_bytes(blob_key("ranker", hashlib.sha256(body).hexdigest()), body)
        self.store.put_bytes(manifest_key("ranker", manifest.digest()), manifest.canonical_bytes())
        return manifest


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def artifacts(store: DictStore) -> ArtifactBuilder:
    return ArtifactBuilder(store)


@pytest.fixture
def make_target() -> Callable[..., Target]:
    def make(revision: int = 1, manifest: Manifest | None = None, **fields: Any) -> Target:
        return Target(
            **{
                "service": Service(model="ranker", environment="test"),
                "cohort": Cohort.STABLE,
                "revision": revision,
                "artifact_id": manifest.artifact_id if manifest else f"v{revision}",
                "manifest_sha256": manifest.digest() if manifest else f"{revision:064x}",
                "feature_schema": "ranker-v1",
                **fields,
            }
        )

    return make


@pytest.fixture
def make_generation(make_target: Callable[..., Target]) -> Callable[..., Generation]:
    def make(
        revision: int = 1, target: Target | None = None, loaded: LoadedModel | None = None
    ) -> Generation:
        target = target or make_target(revision)
        if loaded is None:
            torch.manual_seed(revision)
            architecture = Ranker()
            loaded = LoadedModel(
                manifest_sha256=target.manifest_sha256,
                feature_schema=target.feature_schema,
                architecture=architecture,
                module=RankerNetwork(HIDDEN),
                resources=architecture.resources(
                    {
                        "config.json": json.dumps({"hidden": list(HIDDEN)}).encode(),
                        "normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [1.0] * 88}).encode(),
                    }
                ),
                device="cpu",
                allocated_bytes=0,
            )
        return Generation(target=target, loaded=loaded, runtime_build="test")

    return make
