"""Loading verified weights, against `torch.load` and `safetensors.torch.load_file`.

`python benchmarks/load.py [--quick] [--json]`. All read the same tensors from a warm page cache, in turns,
in one process with one thread. The runtime's own way also hashes every byte that it uses, refuses values
that are not finite and builds the module; the others do none of that, and `load_file` has only mapped the
file when it returns: so it is compared both as it is, and together with what it leaves undone.
"""

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from runtime.artifact_cache import ArtifactCache
from runtime.cached_artifact import CachedArtifact
from runtime.download import Downloader
from runtime.model_loader import dispose, load, verify
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.manifest import Precision, WeightFormat
from weightshift.contracts.target import Target
from weightshift.local.demo_models import ModelRecipe, train, write_artifact

WIDTHS = {True: (2048, 2048), False: (8192, 8192)}


def cache_artifact(directory: Path, hidden: tuple[int, ...]) -> tuple[CachedArtifact, Target]:
    """Write a ranker of these widths in both formats, and put the artifact into a cache."""
    source = directory / "v1"
    model = train(ModelRecipe("v1", hidden=hidden, seed=1, steps=0))
    write_artifact(model, source)
    torch.save(model.network.state_dict(), directory / "model.pt")
    manifest = build_manifest(
        source,
        model="ranker",
        artifact_id="v1",
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="ranker-v1",
        precision=Precision.FP32,
    )
    store = FileObjectStore(root=directory / "store")
    push_artifact(store, source, manifest)
    cache = ArtifactCache(
        root=directory / "cache", downloader=Downloader(store=store, max_artifact_bytes=1 << 40)
    )
    target = Target(
        service=Service(model="ranker", environment="benchmark"),
        cohort=Cohort.STABLE,
        revision=1,
        artifact_id="v1",
        manifest_sha256=manifest.digest(),
        feature_schema="ranker-v1",
    )
    return cache.fetch("ranker", manifest.digest(), lambda done, total: None), target


def load_as_an_instance(cached: CachedArtifact, target: Target) -> None:
    """Verify, read while hashing, check and assemble."""
    loaded = load(verify(cached, target=target), device="cpu", memory_margin=0, checkpoint=lambda: None)
    dispose(loaded)


def load_and_do_the_rest(path: Path) -> None:
    """Do with the public library what the instance's way does."""
    hasher = hashlib.sha256()
    with path.open("rb") as source:
        while piece := source.read(4 << 20):
            hasher.update(piece)
    for tensor in load_file(path).values():
        assert bool(torch.isfinite(tensor.clone()).all())


def measure(hidden: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Take every way in turns."""
    torch.set_num_threads(1)
    directory = Path(tempfile.mkdtemp(prefix="weightshift-benchmark-"))
    try:
        cached, target = cache_artifact(directory, hidden)
        path = directory / "v1/model.safetensors"
        ways: dict[str, Callable[[], object]] = {
            "weightshift": lambda: load_as_an_instance(cached, target),
            "torch_load": lambda: torch.load(directory / "model.pt", weights_only=True),
            "load_file": lambda: load_file(path),
            "load_file_and_the_rest": lambda: load_and_do_the_rest(path),
        }
        with cached:
            seconds = take_turns(ways, rounds)
        size = path.stat().st_size
    finally:
        shutil.rmtree(directory)
    return {
        "mebibytes": size >> 20,
        "rounds": rounds,
        **{f"{way}_ms": round(statistics.median(taken) * 1000, 1) for way, taken in seconds.items()},
        **{f"ratio_to_{way}": ratio(seconds["weightshift"], seconds[way]) for way in list(ways)[1:]},
    }


def take_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every way in every round; the first round only warms up."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, run in ways.items():
            started = time.perf_counter()
            run()
            if number > 0:
                seconds[way].append(time.perf_counter() - started)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of paired rounds."""
    return round(statistics.median(own / other for own, other in zip(ours, theirs, strict=True)), 3)


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 MiB instead of 259 MiB, fewer rounds")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    figures = measure(WIDTHS[arguments.quick], 3 if arguments.quick else 15)
    value = figures["ratio_to_load_file_and_the_rest"]
    bars = {"ratio_to_load_file_and_the_rest": {"value": value, "bar": 1.0, "ok": value <= 1.0}}
    for name, figure in figures.items():
        print(f"{name:32} {figure}")
    for name, result in bars.items():
        print(f"{name:32} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "load", "figures": figures, "bars": bars}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
