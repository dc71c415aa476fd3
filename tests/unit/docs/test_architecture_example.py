"""The worked example of `docs/architectures.md`, installed outside the package, loads and answers."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.dry_run import dry_run
from runtime.execution import answer_body, forward
from runtime.installed_architectures import find_architecture
from runtime.model_loader import load, verify
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import Manifest, Precision, WeightFormat
from weightshift.contracts.target import Target
from weightshift.errors import InvalidInput

DOCUMENT = Path(__file__).parents[3] / "docs/architectures.md"
WEIGHTS = {"weight": torch.tensor([[3000.0, 10_000.0, 500.0]]), "bias": torch.tensor([25_000.0])}


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the example where pip would have put it."""
    site = tmp_path / "site-packages"
    distribution = site / "flat_prices-1.0.dist-info"
    distribution.mkdir(parents=True)
    (site / "flat_prices.py").write_text(block("python"))
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: flat-prices\nVersion: 1.0\n")
    ((group, entries),) = tomllib.loads(block("toml"))["project"]["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (distribution / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(site))


def push(directory: Path) -> Manifest:
    source = directory / "v1"
    source.mkdir()
    save_file(WEIGHTS, source / "model.safetensors")
    (source / "currency.json").write_text(json.dumps({"currency": "EUR"}))
    manifest = build_manifest(
        source,
        model="flats",
        artifact_id="v1",
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="flats-v1",
        precision=Precision.FP32,
        architecture="flat-prices",
    )
    push_artifact(FileObjectStore(root=directory / "store"), source, manifest)
    return manifest


def test_the_example_loads_and_answers(tmp_path: Path) -> None:
    manifest = push(tmp_path)
    downloader = Downloader(store=FileObjectStore(root=tmp_path / "store"), max_artifact_bytes=1 << 20)
    cache = ArtifactCache(root=tmp_path / "cache", downloader=downloader)
    target = Target(
        service=Service(model="flats", environment="test"),
        cohort=Cohort.STABLE,
        revision=1,
        artifact_id="v1",
        manifest_sha256=manifest.digest(),
        feature_schema="flats-v1",
    )
    with cache.fetch("flats", manifest.digest(), lambda done, total: None) as cached:
        verified = verify(cached, target=target)
        loaded = load(verified, device="cpu", memory_margin=0, checkpoint=lambda: None)
    dry_run(loaded)
    body = {"square_metres": 50, "rooms": 2, "floor": 4}
    rows = loaded.architecture.preprocess(body, loaded.resources)
    (out,) = forward(loaded, [rows])
    assert answer_body(loaded, body, out) == {"price": 197_000.0, "currency": "EUR"}


def test_the_example_refuses_what_it_says_it_refuses() -> None:
    architecture = find_architecture("flat-prices")
    bodies: list[object] = [[], {}, {"square_metres": "50", "rooms": 2, "floor": 4}]
    for body in bodies:
        with pytest.raises(InvalidInput):
            architecture.preprocess(body, "EUR")
