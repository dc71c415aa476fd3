"""`pytorch-state-dict` artifacts: loaded without unpickling, and the ones that are refused."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.dry_run import dry_run
from runtime.model_loader import VerifiedArtifact, load, verify
from runtime.state_dict_header import read_state_dict_header
from weightshift.contracts.manifest import Manifest, WeightFormat
from weightshift.errors import DigestMismatch, UnsafeArtifact

STATE_DICT = {"runtime": WeightFormat.STATE_DICT, "path": "model.pt"}


def saved(content: object) -> bytes:
    target = io.BytesIO()
    torch.save(content, target)
    return target.getvalue()


def rewritten(content: bytes, change: Callable[[zipfile.ZipInfo, bytes], bytes], **options: Any) -> bytes:
    """Write an archive anew, each entry changed."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(target, "w", **options) as copy:
        for entry in archive.infolist():
            copy.writestr(entry.filename, change(entry, archive.read(entry)))
    return target.getvalue()


class Bench:
    def __init__(self, root: Path, store: Any, make_target: Any) -> None:
        self.root = root
        self.cache = ArtifactCache(root=root, downloader=Downloader(store=store, max_artifact_bytes=1 << 30))
        self.make_target = make_target

    def verify(self, manifest: Manifest) -> VerifiedArtifact:
        cached = self.cache.fetch("ranker", manifest.digest(), lambda done, total: None)
        return verify(cached, target=self.make_target(1, manifest))


@pytest.fixture
def bench(tmp_path: Path, store: Any, make_target: Any) -> Bench:
    return Bench(tmp_path, store, make_target)


@pytest.fixture(autouse=True)
def _nothing_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)


def test_the_weights_are_the_saved_ones(bench: Bench, artifacts: Any) -> None:
    weights = artifacts.weights(3)
    manifest = artifacts.push(weights=saved(weights), **STATE_DICT)
    loaded = load(bench.verify(manifest), device="cpu", memory_margin=0, checkpoint=lambda: None)
    for name, tensor in loaded.module.state_dict().items():
        assert torch.equal(tensor, weights[name])
    dry_run(loaded)


def test_every_byte_counts_for_the_digest(bench: Bench, artifacts: Any) -> None:
    content = saved(artifacts.weights(3))
    manifest = artifacts.push(weights=content, **STATE_DICT)
    verified = bench.verify(manifest)
    path = bench.root / "artifacts" / manifest.digest() / verified.weights.sha256
    path.chmod(0o644)
    for position in range(0, len(content), 101):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(DigestMismatch):
            load(verified, device="cpu", memory_margin=0, checkpoint=lambda: None)


def test_what_is_parsed_is_what_is_hashed(bench: Bench, artifacts: Any) -> None:
    plain = rewritten(saved(artifacts.weights(3)), lambda _, body: body)
    moved = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(plain)) as archive, zipfile.ZipFile(moved, "w") as copy:
        for entry in reversed(archive.infolist()):
            copy.writestr(entry.filename, archive.read(entry))
    assert len(moved.getvalue()) == len(plain)
    manifest = artifacts.push(weights=plain, **STATE_DICT)
    path = bench.root / "artifacts" / manifest.digest() / manifest.files[0].sha256
    bench.verify(manifest)
    path.chmod(0o644)
    path.write_bytes(moved.getvalue())
    verified = bench.verify(manifest)
    # Its SHA-256 is right again, but the places of the tensors are those of the other archive.
    path.write_bytes(plain)
    with pytest.raises(DigestMismatch, match="changed while it was read"):
        load(verified, device="cpu", memory_margin=0, checkpoint=lambda: None)


def located(tmp_path: Path, content: bytes) -> dict[str, Tensor]:
    """Read the tensors at the places that the header gives."""
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = read_state_dict_header(descriptor)
    finally:
        os.close(descriptor)
    return {
        entry.name: torch.frombuffer(bytearray(content), dtype=torch.uint8)[entry.offset :][: entry.size]
        .clone()
        .view(entry.dtype)
        .view(entry.shape)
        for entry in header.entries
    }


def test_every_type_and_a_storage_that_two_names_share(tmp_path: Path) -> None:
    embedding = nn.Parameter(torch.randn(5, 3))
    state = {
        "embedding": embedding,
        "head": embedding,
        "half": torch.randn(3).half(),
        "brain": torch.randn(3).bfloat16(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
    }
    found = located(tmp_path, saved(state))
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(found[name], tensor)


class Hostile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self._path),))


def with_entry_twice(content: bytes) -> bytes:
    target = io.BytesIO(content)
    with zipfile.ZipFile(target, "a") as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data/0"))
        body = archive.read(name)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(name, body)
    return target.getvalue()


def flagged(content: bytes, ending: str, flag: int) -> bytes:
    """Set a flag of one entry, where the archive's directory has it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(ending))
        place = content.index(name.encode(), archive.start_dir) - 46 + 8
    return content[:place] + bytes([content[place] | flag]) + content[place + 1 :]


def renamed(content: bytes, ending: bytes) -> bytes:
    """Name one entry otherwise than the archive's directory does."""
    place = content.index(ending)
    return content[:place] + b"?" + content[place + 1 :]


def refusals(plain: bytes, tmp_path: Path) -> dict[str, bytes]:
    return {
        "code": saved({"weight": Hostile(tmp_path / "executed")}),
        "deflated": rewritten(plain, lambda _, body: body, compression=zipfile.ZIP_DEFLATED),
        "stride 0": saved({"weight": torch.zeros(1).expand(1 << 40)}),
        "part of a storage": saved({"weight": torch.zeros(1000)[:10]}),
        "an entry twice": with_entry_twice(plain),
        "no state dict": saved([torch.zeros(1)]),
        "a number": saved({"weight": torch.zeros(1), "epoch": 3}),
        "sparse": saved({"weight": torch.zeros(2, 2).to_sparse()}),
        "big-endian": rewritten(
            plain, lambda entry, body: b"big" if entry.filename.endswith("/byteorder") else body
        ),
        "short": rewritten(plain, lambda entry, body: body[:-4] if "/data/" in entry.filename else body),
        "encrypted": flagged(plain, "/data.pkl", 1),
        "encrypted tensor": flagged(plain, "/data/0", 1),
        "patched": flagged(plain, "/byteorder", 0x20),
        "other name": renamed(plain, b"/byteorder"),
        "legacy": b"\x80\x02}q\x00.",
        "cut": plain[:-30],
        "empty": b"",
    }


@pytest.mark.parametrize(
    "kind",
    [
        "code",
        "deflated",
        "stride 0",
        "part of a storage",
        "an entry twice",
        "no state dict",
        "a number",
        "sparse",
        "big-endian",
        "short",
        "encrypted",
        "encrypted tensor",
        "patched",
        "other name",
        "legacy",
        "cut",
        "empty",
    ],
)
def test_what_is_refused_before_anything_is_allocated(
    bench: Bench, artifacts: Any, tmp_path: Path, kind: str
) -> None:
    content = refusals(saved(artifacts.weights(1)), tmp_path)[kind]
    manifest = artifacts.push(weights=content, **STATE_DICT)
    with pytest.raises(UnsafeArtifact):
        bench.verify(manifest)
    assert not (tmp_path / "executed").exists()


def test_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    content = bytearray(saved({"a": torch.zeros(64), "b": torch.zeros(64)}))
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as archive:
        first, second = (archive.getinfo(n) for n in archive.namelist() if "/data/" in n)
        directory = archive.start_dir
    # The directory's entry of the second storage points at the first one's header.
    place = content.index(second.filename.encode(), directory) - 4
    assert int.from_bytes(content[place : place + 4], "little") == second.header_offset
    content[place : place + 4] = first.header_offset.to_bytes(4, "little")
    with pytest.raises(UnsafeArtifact, match="overlap"):
        located(tmp_path, bytes(content))


async def test_an_instance_swaps_between_the_two_formats(world: Any, artifacts: Any) -> None:
    await world.publish(artifacts.push("v1", seed=1))
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
        await world.publish(artifacts.push("v2", weights=saved(artifacts.weights(2)), **STATE_DICT))
        await world.until(world.serving(instance, 2))
        await world.publish(artifacts.push("v3", seed=3))
        await world.until(world.serving(instance, 3))
