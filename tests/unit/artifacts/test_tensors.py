"""What a manifest says of the weights, and which weights are refused before they are pushed."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.state_dict_header import read_state_dict
from weightshift.contracts.manifest import Manifest, ManifestTensor, Precision, TensorType, WeightFormat
from weightshift.errors import UnsafeArtifact

Write = Callable[..., None]


def build(directory: Path, runtime: WeightFormat = WeightFormat.SAFETENSORS) -> Manifest:
    return build_manifest(
        directory,
        model="ranker",
        artifact_id="v41",
        runtime=runtime,
        feature_schema="features-1",
        precision=Precision.FP32,
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2).to(torch.bfloat16))


EXPECTED = [
    ("0.bias", TensorType.F32, (3,)),
    ("0.weight", TensorType.F32, (3, 4)),
    ("1.bias", TensorType.F32, (3,)),
    ("1.num_batches_tracked", TensorType.I64, ()),
    ("1.running_mean", TensorType.F32, (3,)),
    ("1.running_var", TensorType.F32, (3,)),
    ("1.weight", TensorType.F32, (3,)),
    ("2.bias", TensorType.BF16, (2,)),
    ("2.weight", TensorType.BF16, (2, 3)),
]


def listed(manifest: Manifest) -> list[tuple[str, TensorType, tuple[int, ...]]]:
    assert manifest.tensors is not None
    return [(tensor.name, tensor.dtype, tensor.shape) for tensor in manifest.tensors]


def test_safetensors_are_listed_by_name(tmp_path: Path) -> None:
    save_file(network().state_dict(), tmp_path / "model.safetensors")
    assert listed(build(tmp_path)) == EXPECTED


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_state_dict_is_listed_by_name(tmp_path: Path, protocol: int) -> None:
    torch.save(network().state_dict(), tmp_path / "model.pt", pickle_protocol=protocol)
    assert listed(build(tmp_path, WeightFormat.STATE_DICT)) == EXPECTED


def test_the_parameters_themselves_are_listed_too(tmp_path: Path) -> None:
    torch.save(dict(nn.Linear(2, 1).named_parameters()), tmp_path / "model.pt")
    assert [name for name, _, _ in listed(build(tmp_path, WeightFormat.STATE_DICT))] == ["bias", "weight"]


def test_tensors_of_several_files_are_listed_together(tmp_path: Path, write_weights: Write) -> None:
    write_weights("b.safetensors", {"second": ("F32", [2], 8)})
    write_weights("a.safetensors", {"third": ("U8", [3], 3)})
    assert build(tmp_path).tensors == (
        ManifestTensor(name="second", dtype=TensorType.F32, shape=(2,)),
        ManifestTensor(name="third", dtype=TensorType.U8, shape=(3,)),
    )


def test_a_tensor_in_two_files_is_refused(tmp_path: Path, write_weights: Write) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write_weights(name, {"weight": ("F32", [2], 8)})
    with pytest.raises(UnsafeArtifact, match=r"'b.safetensors' holds tensor 'weight' again"):
        build(tmp_path)


def test_files_without_the_suffix_of_the_format_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"anything")
    assert build(tmp_path).tensors is None


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(UnsafeArtifact, match=r"'model.safetensors' cannot be in an artifact"):
        build(tmp_path)


@pytest.mark.parametrize("name", ["", "a" * 257, "line\nbreak", "nul\x00"])
def test_a_tensor_name_that_no_manifest_can_hold_is_refused(
    tmp_path: Path, write_weights: Write, name: str
) -> None:
    write_weights("model.safetensors", {name: ("F32", [1], 4)})
    with pytest.raises(UnsafeArtifact, match="name"):
        build(tmp_path)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4).t(),
        torch.zeros(30)[:10],
        torch.zeros(30)[20:],
        torch.zeros(1).expand(1 << 40),
        torch.zeros(4, 4)[:, :2],
    ],
    ids=["transposed", "start of a larger one", "end of a larger one", "stride 0", "columns"],
)
def test_a_tensor_that_does_not_fill_its_storage_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save({"weight": tensor}, tmp_path / "model.pt")
    with pytest.raises(UnsafeArtifact, match=r"'weight' is not contiguous.*\.contiguous\(\)\.clone\(\)"):
        build(tmp_path, WeightFormat.STATE_DICT)


class Payload:
    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._trace,)


@pytest.mark.parametrize("nested", [False, True])
def test_a_payload_in_a_state_dict_is_refused_and_never_run(tmp_path: Path, nested: bool) -> None:
    trace = tmp_path / "trace"
    directory = tmp_path / "artifact"
    directory.mkdir()
    payload = {"inner": Payload(trace)} if nested else Payload(trace)
    torch.save({"weight": torch.zeros(1), "other": payload}, directory / "model.pt")
    with pytest.raises(UnsafeArtifact, match="more than a plain dictionary of tensors"):
        build(directory, WeightFormat.STATE_DICT)
    assert not trace.exists()


@pytest.mark.parametrize("content", [network(), {"a": {"b": torch.zeros(1)}}, [torch.zeros(1)], {}, {1: 2}])
def test_only_a_flat_dictionary_of_tensors_is_a_state_dict(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(UnsafeArtifact, match="state dict"):
        build(tmp_path, WeightFormat.STATE_DICT)


def repacked(content: bytes, *, change: Callable[[dict[str, bytes]], None], **options: Any) -> io.BytesIO:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    change(entries)
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", **options) as archive:
        for name, body in entries.items():
            archive.writestr(name, body)
    result.seek(0)
    return result


def saved() -> bytes:
    target = io.BytesIO()
    torch.save({"weight": torch.zeros(64)}, target)
    return target.getvalue()


def storage_of(entries: dict[str, bytes]) -> str:
    return next(name for name in entries if "/data/" in name)


def test_a_repacked_archive_is_read_as_before() -> None:
    assert read_state_dict(repacked(saved(), change=lambda _: None)).keys() == {"weight"}


def test_a_compressed_archive_is_refused() -> None:
    with pytest.raises(UnsafeArtifact, match="compressed"):
        read_state_dict(repacked(saved(), change=lambda _: None, compression=zipfile.ZIP_DEFLATED))


def test_a_storage_that_is_shorter_than_its_tensor_is_refused() -> None:
    def cut(entries: dict[str, bytes]) -> None:
        entries[storage_of(entries)] = b"\0" * 4

    with pytest.raises(UnsafeArtifact, match="bytes its shape needs"):
        read_state_dict(repacked(saved(), change=cut))


def test_a_missing_storage_is_refused() -> None:
    with pytest.raises(UnsafeArtifact, match="bytes its shape needs"):
        read_state_dict(repacked(saved(), change=lambda entries: entries.__delitem__(storage_of(entries))))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_entry_that_is_there_twice_is_refused() -> None:
    result = repacked(saved(), change=lambda _: None)
    with zipfile.ZipFile(result, "a") as archive:
        archive.writestr(archive.namelist()[0], b"other")
    with pytest.raises(UnsafeArtifact, match="twice"):
        read_state_dict(result)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02}q\x00.", b"x" * 1000])
def test_what_is_no_archive_is_refused(content: bytes) -> None:
    with pytest.raises(UnsafeArtifact, match="zip archive"):
        read_state_dict(io.BytesIO(content))
