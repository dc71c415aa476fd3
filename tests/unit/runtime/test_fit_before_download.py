"""What an artifact's manifest and small files tell, before a byte of its weights is downloaded."""

from typing import Any

import pytest

from weightshift.artifacts.base import blob_key
from weightshift.contracts.instance import CandidatePhase
from weightshift.contracts.manifest import Manifest, ManifestTensor, TensorType


def tensors_of(artifacts: Any) -> tuple[ManifestTensor, ...]:
    weights = artifacts.weights()
    return tuple(
        ManifestTensor(name=name, dtype=TensorType.F32, shape=tuple(weights[name].shape))
        for name in sorted(weights)
    )


def weights_key(manifest: Manifest) -> str:
    return blob_key("ranker", manifest.files[0].sha256)


async def outcome(world: Any, manifest: Manifest) -> Any:
    await world.publish(manifest)
    async with world.running() as instance:
        await world.until(lambda: instance.holder.current is not None or has_failed(instance))
        return instance.report().candidate


def has_failed(instance: Any) -> bool:
    progress = instance.report().candidate
    return progress is not None and progress.error is not None


async def test_tensors_that_fit_serve(world: Any, artifacts: Any) -> None:
    progress = await outcome(world, artifacts.push(tensors=tensors_of(artifacts)))
    assert progress.error is None


@pytest.mark.parametrize("change", ["shape", "type", "one less", "one more"])
async def test_tensors_that_do_not_fit_are_refused_before_the_weights_are_read(
    world: Any, artifacts: Any, change: str
) -> None:
    first, *others = tensors_of(artifacts)
    match change:
        case "shape":
            declared = (first.model_copy(update={"shape": (*first.shape, 1)}), *others)
        case "type":
            declared = (first.model_copy(update={"dtype": TensorType.F16}), *others)
        case "one less":
            declared = tuple(others)
        case _:
            declared = (first.model_copy(update={"name": "another"}), first, *others)
    manifest = artifacts.push(tensors=declared)
    progress = await outcome(world, manifest)
    assert (progress.error.type, progress.error.phase) == ("IncompatibleModel", CandidatePhase.VERIFYING)
    assert weights_key(manifest) not in world.store.read
    assert progress.bytes_done == 0
    assert list((world.root / "artifacts").iterdir()) == []


async def test_weights_that_are_not_the_declared_ones_are_refused(world: Any, artifacts: Any) -> None:
    other = artifacts.weights(hidden=(8, 5))
    manifest = artifacts.push(weights=other, tensors=tensors_of(artifacts))
    progress = await outcome(world, manifest)
    assert progress.error.type == "IncompatibleModel"
    assert "other tensors than the manifest lists" in progress.error.message


async def test_an_unknown_file_is_refused_before_the_weights_are_read(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push(files={"modeling_ranker.py": b"raise SystemExit('imported')"})
    progress = await outcome(world, manifest)
    assert (progress.error.type, progress.error.phase) == ("IncompatibleModel", CandidatePhase.VERIFYING)
    assert weights_key(manifest) not in world.store.read


async def test_a_cached_artifact_is_not_asked_for_again(world: Any, artifacts: Any) -> None:
    manifest = artifacts.push(tensors=tensors_of(artifacts))
    assert (await outcome(world, manifest)).error is None
    world.store.objects.clear()
    world.store.read.clear()
    async with world.running() as instance:
        await world.until(world.serving(instance, 1))
    assert world.store.read == []
