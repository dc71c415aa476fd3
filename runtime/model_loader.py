"""From verified files to a model that may serve: compare, allocate once, read, check, dry-run."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from runtime.architectures import Architecture
from runtime.assembly import assemble, build
from runtime.cached_artifact import CachedArtifact
from runtime.compatibility import check_requirements
from runtime.device_copy import copy_to_device
from runtime.device_pool import allocate_apart, give_back_unused
from runtime.generation_holder import LoadedModel
from runtime.hashing_reader import HashingReader
from runtime.installed_architectures import find_architecture
from runtime.memory_budget import (
    MemoryNeed,
    check_budget,
    live_peak_bytes,
    return_free_memory,
    whole_segments,
)
from runtime.safetensors_header import TORCH_TYPES, TensorEntry, WeightsHeader, read_header
from runtime.state_dict_header import read_state_dict_header
from runtime.tensor_fit import TensorSpecs, check_finite, check_tensors, check_ties
from weightshift.contracts.manifest import Manifest, ManifestFile, ManifestTensor, WeightFormat
from weightshift.contracts.target import Target
from weightshift.errors import IncompatibleModel, UnsafeArtifact

_ALIGNMENT = 512
_STEP_BYTES = 64 << 20
_SUFFIXES = {WeightFormat.SAFETENSORS: (".safetensors",), WeightFormat.STATE_DICT: (".pt", ".pth")}
_READERS = {WeightFormat.SAFETENSORS: read_header, WeightFormat.STATE_DICT: read_state_dict_header}


@dataclass(frozen=True)
class VerifiedArtifact:
    """An artifact whose header and small files fit the architecture; nothing is allocated yet."""

    cached: CachedArtifact
    architecture: Architecture
    resources: Any
    weights: ManifestFile
    header: WeightsHeader

    @property
    def tensor_specs(self) -> TensorSpecs:
        """Each tensor's type and shape by name."""
        return {entry.name: (entry.dtype, entry.shape) for entry in self.header.entries}


def verify(
    cached: CachedArtifact, *, target: Target, checkpoint: Callable[[], None] = lambda: None
) -> VerifiedArtifact:
    """Check everything that can be known without the tensors' bytes.

    `checkpoint` is called between steps and may raise to stop. Raises `UnsafeArtifact`, `IncompatibleModel`,
    `DigestMismatch`.
    """
    manifest = cached.manifest
    architecture, resources = check_fit(manifest, target=target, read=lambda _, file: cached.read_file(file))
    checkpoint()
    weights = _weights_file(manifest)
    try:
        header = _read_header(cached, weights)
        checkpoint()
        found = {entry.name: (entry.dtype, entry.shape) for entry in header.entries}
        if manifest.tensors is None:
            check_tensors(found, build(architecture, resources), architecture.tied)
        elif found != _declared(manifest.tensors):
            raise IncompatibleModel(
                f"{weights.path} holds other tensors than the manifest lists; push it again."
            )
    except (UnsafeArtifact, IncompatibleModel):
        if not cached.is_fresh:
            # It was read before it is hashed, so what is wrong with it may be the disk's doing.
            _check_bytes(cached, weights, checkpoint)
        raise
    return VerifiedArtifact(cached, architecture, resources, weights, header)


def check_fit(
    manifest: Manifest, *, target: Target, read: Callable[[Manifest, ManifestFile], bytes]
) -> tuple[Architecture, Any]:
    """Return the architecture and its resources, once all that the manifest tells fits them.

    `read` returns a small file. Raises `IncompatibleModel`, `UnsafeArtifact`, and what `read` raises.
    """
    architecture = find_architecture(manifest.architecture or manifest.model)
    _check_manifest(manifest, architecture, target)
    check_requirements(manifest.requires)
    weights = _weights_file(manifest)
    small = {file.path: read(manifest, file) for file in manifest.files if file is not weights}
    resources = architecture.resources(small)
    if manifest.tensors is not None:
        check_tensors(_declared(manifest.tensors), build(architecture, resources), architecture.tied)
    return architecture, resources


def load(
    verified: VerifiedArtifact,
    *,
    device: str,
    memory_margin: int,
    checkpoint: Callable[[], None],
    workspace: int = 0,
) -> LoadedModel:
    """Read the weights into one allocation, hashing the very bytes that are used.

    `checkpoint` is called between tensors and may raise to stop; `workspace` is what the dry-run will need
    in bytes. Raises `OutOfMemory`, `DigestMismatch`, `IncompatibleModel` for values that are not finite,
    or that the architecture ties and that differ.
    """
    need = MemoryNeed(
        weights=whole_segments(weights_bytes(verified), device),
        workspace=workspace,
        live_peak=live_peak_bytes(device),
        margin=memory_margin,
    )
    check_budget(need, device=device)
    host = _read(verified, checkpoint, pinned=device == "cuda")
    memory = host if device == "cpu" else copy_to_device(host, device, checkpoint)
    return _loaded(verified, memory, device, checkpoint)


def stage(
    verified: VerifiedArtifact, *, device: str, memory_margin: int, checkpoint: Callable[[], None]
) -> LoadedModel:
    """Read the weights as `load` does, but into host memory, from where they can be copied to the device.

    Raises as `load`; the host must have room for these weights and for a copy of those that serve.
    """
    check_budget(MemoryNeed(weights=2 * weights_bytes(verified), margin=memory_margin), device="cpu")
    host = _read(verified, checkpoint, pinned=device == "cuda")
    loaded = _loaded(verified, host, device, checkpoint)
    loaded.is_staged = True
    return loaded


def weights_bytes(verified: VerifiedArtifact) -> int:
    """Return the size of the allocation that holds the weights."""
    return sum(_aligned(entry.size) for entry in verified.header.entries)


def _loaded(
    verified: VerifiedArtifact, memory: Tensor, device: str, checkpoint: Callable[[], None]
) -> LoadedModel:
    tensors = _views(memory, verified.header.entries)
    for name, tensor in tensors.items():
        checkpoint()
        check_finite(name, tensor)
    checkpoint()
    check_ties(tensors, verified.architecture.tied)
    return LoadedModel(
        manifest_sha256=verified.cached.digest,
        feature_schema=verified.architecture.feature_schema,
        architecture=verified.architecture,
        module=assemble(verified.architecture, verified.resources, tensors),
        resources=verified.resources,
        device=device,
        allocated_bytes=weights_bytes(verified),
        tensors=tensors,
    )


def dispose(loaded: LoadedModel) -> None:
    """Free a model that no generation uses any more, once the device has finished with it."""
    if loaded.device == "cuda":
        finished = torch.cuda.Event()  # type: ignore[no-untyped-call]
        finished.record(torch.cuda.default_stream())
        finished.synchronize()
    loaded.module = nn.Module()
    loaded.tensors = {}
    loaded.resources = None
    give_back_unused()
    return_free_memory()


def _check_manifest(manifest: Manifest, architecture: Architecture, target: Target) -> None:
    for field, found, wanted in (
        ("model", manifest.model, target.service.model),
        ("artifact_id", manifest.artifact_id, target.artifact_id),
        ("feature_schema", manifest.feature_schema, target.feature_schema),
        ("feature_schema", manifest.feature_schema, architecture.feature_schema),
        ("precision", manifest.precision, architecture.precision),
    ):
        if found != wanted:
            raise IncompatibleModel(
                f"{field} of the manifest is {str(found)!r}; {str(wanted)!r} is due here."
            )


def _weights_file(manifest: Manifest) -> ManifestFile:
    suffixes = _SUFFIXES[manifest.runtime]
    weights = [file for file in manifest.files if file.path.endswith(suffixes)]
    if len(weights) != 1:
        raise IncompatibleModel(f"The artifact holds {len(weights)} {' or '.join(suffixes)} files; push one.")
    return weights[0]


def _declared(tensors: tuple[ManifestTensor, ...]) -> TensorSpecs:
    return {tensor.name: (TORCH_TYPES[tensor.dtype], tensor.shape) for tensor in tensors}


def _read_header(cached: CachedArtifact, weights: ManifestFile) -> WeightsHeader:
    descriptor = cached.open_file(weights)
    try:
        return _READERS[cached.manifest.runtime](descriptor)
    finally:
        os.close(descriptor)


def _check_bytes(cached: CachedArtifact, file: ManifestFile, checkpoint: Callable[[], None]) -> None:
    """Raise `DigestMismatch` unless a file's bytes are those that its manifest names."""
    with HashingReader(cached, file, ()) as reader:
        for offset in range(0, file.bytes, _STEP_BYTES):
            checkpoint()
            reader.skip_to(offset)
        reader.finish()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _allocate(size: int, *, pinned: bool) -> Tensor:
    """Return `size` aligned bytes of one host allocation."""
    buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, pin_memory=pinned)
    start = -buffer.data_ptr() % _ALIGNMENT
    return buffer[start : start + size]


def allocate_slots(like: Mapping[str, Tensor], *, device: str, pinned: bool = False) -> dict[str, Tensor]:
    """Return tensors without values, of the same names, types and shapes, in one allocation."""
    size = sum(_aligned(tensor.nbytes) for tensor in like.values())
    memory = _allocate(size, pinned=pinned) if device == "cpu" else allocate_apart(size, device)
    slots, position = {}, 0
    for name, tensor in like.items():
        slots[name] = memory[position : position + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        position += _aligned(tensor.nbytes)
    return slots


def _read(verified: VerifiedArtifact, checkpoint: Callable[[], None], *, pinned: bool) -> Tensor:
    """Fill the slots from the file in file order, checking the SHA-256 of exactly these bytes."""
    host = _allocate(weights_bytes(verified), pinned=pinned)
    memory = memoryview(host.numpy())  # type: ignore[arg-type]
    position = 0
    filled: dict[int, memoryview] = {}
    with HashingReader(verified.cached, verified.weights, verified.header.parsed) as reader:
        for entry in verified.header.entries:
            checkpoint()
            slot = memory[position : position + entry.size]
            if entry.size and entry.offset in filled:
                slot[:] = filled[entry.offset]
            else:
                reader.skip_to(entry.offset)
                reader.fill(slot)
                filled[entry.offset] = slot
            position += _aligned(entry.size)
        reader.finish()
    return host


def _views(memory: Tensor, entries: tuple[TensorEntry, ...]) -> dict[str, Tensor]:
    tensors, position = {}, 0
    for entry in entries:
        slot = memory[position : position + entry.size]
        tensors[entry.name] = slot.view(entry.dtype).view(entry.shape)
        position += _aligned(entry.size)
    return tensors
