from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.generation_holder import LoadedModel
from runtime.model_loader import VerifiedArtifact, dispose, load, stage, verify
from tests.unit.runtime.conftest import SERVICE, ArtifactBuilder, DictStore, World
from weightshift.contracts.identity import Cohort
from weightshift.contracts.manifest import Manifest
from weightshift.contracts.target import Target


@pytest.fixture(autouse=True)
def _device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def artifacts(store: DictStore) -> ArtifactBuilder:
    return ArtifactBuilder(store)


@pytest.fixture
def world(tmp_path: Path, store: DictStore) -> World:
    return World(tmp_path, store)


class Bench:
    """Loads pushed artifacts to any device."""

    def __init__(self, root: Path, store: DictStore) -> None:
        downloader = Downloader(store=store, max_artifact_bytes=1 << 40)
        self._cache = ArtifactCache(root=root, downloader=downloader)
        self.loaded: list[LoadedModel] = []

    def verify(self, manifest: Manifest) -> VerifiedArtifact:
        target = Target(
            service=SERVICE,
            cohort=Cohort.STABLE,
            revision=1,
            artifact_id=manifest.artifact_id,
            manifest_sha256=manifest.digest(),
            feature_schema=manifest.feature_schema,
        )
        cached = self._cache.fetch(SERVICE.model, manifest.digest(), lambda *_: None)
        return verify(cached, target=target)

    def load(self, manifest: Manifest, device: str = "cuda", *, memory_margin: int = 0) -> LoadedModel:
        return self._keep(
            load(self.verify(manifest), device=device, memory_margin=memory_margin, checkpoint=lambda: None)
        )

    def stage(self, manifest: Manifest) -> LoadedModel:
        return self._keep(
            stage(self.verify(manifest), device="cuda", memory_margin=0, checkpoint=lambda: None)
        )

    def _keep(self, loaded: LoadedModel) -> LoadedModel:
        self.loaded.append(loaded)
        return loaded


@pytest.fixture
def bench(tmp_path: Path, store: DictStore) -> Iterator[Bench]:
    bench = Bench(tmp_path, store)
    yield bench
    for loaded in bench.loaded:
        dispose(loaded)
