import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from runtime import model_loader
from runtime.architectures import Ranker
from runtime.artifact_cache import ArtifactCache
from runtime.cached_artifact import CachedArtifact
from runtime.device_pool import allocate_apart, give_back_unused
from runtime.download import Downloader
from runtime.dry_run import dry_run
from runtime.generation_holder import LoadedModel
from runtime.model_loader import dispose, load, verify
from weightshift.contracts.manifest import Manifest, Precision, Requirements, WeightFormat
from weightshift.contracts.target import Target
from weightshift.errors import (
    DigestMismatch,
    IncompatibleModel,
    OutOfMemory,
    Superseded,
    UnsafeArtifact,
)

MakeTarget = Callable[..., Target]


class Bench:
    """Fetches an artifact into a cache and takes it through verifying and loading."""

    def __init__(self, root: Path, store: Any, make_target: MakeTarget) -> None:
        self.root = root
        self.cache = ArtifactCache(root=root, downloader=Downloader(store=store, max_artifact_bytes=1 << 30))
        self.make_target = make_target

    def fetch(self, manifest: Manifest) -> CachedArtifact:
        return self.cache.fetch("ranker", manifest.digest(), lambda done, total: None)

    def verify(self, manifest: Manifest, **target: Any) -> model_loader.VerifiedArtifact:
        return verify(self.fetch(manifest), target=self.make_target(1, manifest, **target))

    def load(self, manifest: Manifest, *, memory_margin: int = 0) -> LoadedModel:
        return load(self.verify(manifest), device="cpu", memory_margin=memory_margin, checkpoint=lambda: None)

    def overwrite(self, manifest: Manifest, path: str, content: bytes) -> None:
        """Change a cached file in place, as failing storage would."""
        file = next(file for file in manifest.files if file.path == path)
        cached = self.root / "artifacts" / manifest.digest() / file.sha256
        cached.chmod(0o644)
        cached.write_bytes(content)


@pytest.fixture
def bench(tmp_path: Path, store: Any, make_target: MakeTarget) -> Bench:
    return Bench(tmp_path, store, make_target)


def test_a_loaded_model_holds_the_pushed_weights_in_one_aligned_allocation(
    bench: Bench, artifacts: Any
) -> None:
    loaded = bench.load(artifacts.push(seed=3))
    state = loaded.module.state_dict()
    for name, tensor in artifacts.weights(3).items():
        assert torch.equal(state[name], tensor)
    assert {tensor.data_ptr() % 512 for tensor in state.values()} == {0}
    assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == 1
    assert not loaded.module.training
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())
    dry_run(loaded)


def changed(weights: Mapping[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    merged = {**weights, **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head__bias": None}, r"lack 'head\.bias'; push"),
        ({"layers__9__weight": torch.zeros(1)}, r"hold unknown 'layers\.9\.weight'; push"),
        ({"head__weight": torch.zeros(1, 5)}, r"'head\.weight' as .* \[1, 5\] instead of .* \[1, 4\]"),
        ({"head__weight": torch.zeros(4, 1)}, r"\[4, 1\]"),
        ({"head__weight": torch.zeros(1, 4, dtype=torch.float16)}, r"float16"),
        ({"head__weight": torch.zeros(1, 4, dtype=torch.float64)}, r"float64"),
    ],
)
def test_weights_must_equal_the_architecture_before_anything_is_allocated(
    bench: Bench,
    artifacts: Any,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Tensor | None],
    message: str,
) -> None:
    monkeypatch.setattr(model_loader, "_allocate", None)
    manifest = artifacts.push(weights=changed(artifacts.weights(), **changes))
    with pytest.raises(IncompatibleModel, match=message):
        bench.verify(manifest)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runtime": WeightFormat.STATE_DICT}, "0 .pt or .pth files"),
        ({"precision": Precision.FP16}, "precision"),
        ({"feature_schema": "ranker-v2"}, "feature_schema"),
        ({"architecture": "transformer"}, "no architecture 'transformer'"),
        ({"requires": Requirements(torch=">=99")}, "requires torch >=99"),
        ({"requires": Requirements(cuda=">=12")}, "requires cuda"),
        ({"requires": Requirements(driver=">=550")}, "requires driver"),
        ({"requires": Requirements(torch="newest")}, "not a version range"),
    ],
)
def test_a_manifest_this_runtime_cannot_serve_is_refused(
    bench: Bench, artifacts: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(IncompatibleModel, match=message):
        bench.verify(artifacts.push(**fields))


def test_a_satisfied_requirement_is_accepted(bench: Bench, artifacts: Any) -> None:
    bench.load(artifacts.push(requires=Requirements(torch=">=2.0,<99")))


@pytest.mark.parametrize("field", ["feature_schema", "artifact_id"])
def test_the_manifest_must_be_the_targets(bench: Bench, artifacts: Any, field: str) -> None:
    with pytest.raises(IncompatibleModel, match=field):
        bench.verify(artifacts.push(), **{field: "other"})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": b"{}"}, "hidden"),
        ({"config.json": b"not json"}, "config.json"),
        ({"config.json": b'{"hidden": [0]}'}, "width"),
        ({"config.json": b'{"hidden": [8193]}'}, "width"),
        ({"config.json": b'{"hidden": [8, 4, 2, 2, 2]}'}, "hidden"),
        ({"config.json": b'{"hidden": [8, 4], "auto_map": "model.Ranker"}'}, "auto_map"),
        ({"normalisation.json": json.dumps({"mean": [0.0] * 87, "std": [1.0] * 88}).encode()}, "mean"),
        ({"normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [0.0] * 88}).encode()}, "above 0"),
        ({"normalisation.json": json.dumps({"mean": [1e39] * 88, "std": [1.0] * 88}).encode()}, "finite"),
        ({"normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [1e-45] * 88}).encode()}, "finite"),
        ({"model.py": b"raise SystemExit"}, r"model\.py"),
        ({"other.safetensors": b""}, "2 .safetensors files"),
    ],
)
def test_small_files_must_be_exactly_what_the_architecture_reads(
    bench: Bench, artifacts: Any, files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(IncompatibleModel, match=message):
        bench.verify(artifacts.push(files=files))


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("runtime", list(WeightFormat))
def test_a_pickle_is_refused_and_not_executed(
    bench: Bench, artifacts: Any, tmp_path: Path, runtime: WeightFormat
) -> None:
    executed = tmp_path / "executed"
    manifest = artifacts.push(weights=pickle.dumps(Payload(executed)), runtime=runtime)
    with pytest.raises((UnsafeArtifact, IncompatibleModel)):
        bench.verify(manifest)
    assert not executed.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(bench: Bench, artifacts: Any, value: float) -> None:
    weights = artifacts.weights()
    weights["layers.1.weight"][2, 3] = value
    with pytest.raises(IncompatibleModel, match=r"layers\.1\.weight.*finite"):
        bench.load(artifacts.push(weights=weights))


def test_without_room_for_a_second_generation_nothing_is_allocated(
    bench: Bench, artifacts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_loader, "_allocate", None)
    with pytest.raises(OutOfMemory, match="bytes"):
        bench.load(artifacts.push(), memory_margin=1 << 60)


@pytest.mark.parametrize("position", [0, -1])
def test_a_bit_flip_after_verifying_is_found_while_loading(
    bench: Bench, artifacts: Any, position: int
) -> None:
    weights = save(artifacts.weights())
    manifest = artifacts.push(weights=weights)
    verified = bench.verify(manifest)
    start = verified.header.entries[0].offset if position == 0 else len(weights) - 1
    flipped = bytearray(weights)
    flipped[start] ^= 1
    bench.overwrite(manifest, "model.safetensors", bytes(flipped))
    with pytest.raises(DigestMismatch, match="SHA-256"):
        load(verified, device="cpu", memory_margin=0, checkpoint=lambda: None)


def test_a_file_that_shrinks_is_found_before_it_is_read(bench: Bench, artifacts: Any) -> None:
    weights = save(artifacts.weights())
    manifest = artifacts.push(weights=weights)
    verified = bench.verify(manifest)
    bench.overwrite(manifest, "model.safetensors", weights[:-4])
    with pytest.raises(DigestMismatch, match="bytes of its manifest"):
        load(verified, device="cpu", memory_margin=0, checkpoint=lambda: None)


def test_changed_small_files_are_found(bench: Bench, artifacts: Any) -> None:
    manifest = artifacts.push()
    bench.fetch(manifest).close()
    bench.overwrite(manifest, "config.json", b'{"hidden": [8, 5]}')
    with pytest.raises(DigestMismatch, match=r"config\.json"):
        bench.verify(manifest)


def test_a_load_stops_at_a_checkpoint(bench: Bench, artifacts: Any) -> None:
    def stop() -> None:
        raise Superseded

    with pytest.raises(Superseded):
        load(bench.verify(artifacts.push()), device="cpu", memory_margin=0, checkpoint=stop)


class TiedNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 8, bias=False)
        self.output = nn.Linear(4, 8, bias=False)
        self.register_buffer("scale", torch.ones(1), persistent=False)


class Tied(Ranker):
    tied: Mapping[str, str] = {"output.weight": "embedding.weight"}

    def build(self, resources: Any) -> nn.Module:
        return TiedNetwork()

    def materialise(self, model: nn.Module) -> None:
        model.scale = torch.full((1,), 2.0)


class Unfinished(Tied):
    def materialise(self, model: nn.Module) -> None:
        pass


@pytest.fixture
def tied(bench: Bench, artifacts: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoadedModel]:
    def load_as(architecture: Ranker, **weights: Tensor) -> LoadedModel:
        monkeypatch.setattr(model_loader, "find_architecture", lambda name: architecture)
        return bench.load(artifacts.push(weights={k.replace("__", "."): v for k, v in weights.items()}))

    return load_as


def test_a_tied_tensor_may_be_absent_and_is_tied_again(tied: Callable[..., LoadedModel]) -> None:
    weight = torch.arange(32.0).reshape(8, 4)
    module = tied(Tied(), embedding__weight=weight).module
    assert module.get_parameter("output.weight") is module.get_parameter("embedding.weight")
    assert torch.equal(module.get_parameter("output.weight"), weight)
    assert module.get_buffer("scale").item() == 2.0


def test_a_tied_tensor_that_is_there_must_equal_its_source(tied: Callable[..., LoadedModel]) -> None:
    weight = torch.arange(32.0).reshape(8, 4)
    tied(Tied(), embedding__weight=weight, output__weight=weight.clone())
    with pytest.raises(IncompatibleModel, match=r"'output\.weight' and 'embedding\.weight' differ"):
        tied(Tied(), embedding__weight=weight, output__weight=weight + 1)


def test_a_tensor_without_a_value_is_refused(tied: Callable[..., LoadedModel]) -> None:
    with pytest.raises(IncompatibleModel, match="scale"):
        tied(Unfinished(), embedding__weight=torch.zeros(8, 4))


def test_disposal_lets_go_of_the_weights(bench: Bench, artifacts: Any) -> None:
    loaded = bench.load(artifacts.push())
    dispose(loaded)
    assert list(loaded.module.parameters()) == []
    assert loaded.resources is None


def test_the_cpu_has_no_pools(bench: Bench, artifacts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("a pool of a device that is not here")

    monkeypatch.setattr(torch.cuda, "MemPool", refuse)
    dispose(bench.load(artifacts.push("v1")))
    with pytest.raises(AssertionError, match="not here"):
        allocate_apart(1, "cuda")
    give_back_unused()
