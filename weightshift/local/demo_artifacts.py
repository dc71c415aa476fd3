"""The demonstration's trained models as artifacts: stored, registered and approved."""

import asyncio
from pathlib import Path

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.configured_keys import artifact_signing_key
from weightshift.artifacts.open_store import open_store
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.manifest import ArtifactRecord, Precision, WeightFormat
from weightshift.registry.client import RegistryClient
from weightshift.settings import SigningSettings, StoreSettings

MODEL = "ranker"


async def store_and_approve(registry: RegistryClient, directory: Path) -> None:
    """Store the model in `directory` under the directory's name, and approve it."""
    record = await asyncio.to_thread(_store, directory)
    await registry.register_artifact(record)
    await registry.approve_artifact(MODEL, record.artifact_id)


def _store(directory: Path) -> ArtifactRecord:
    manifest = build_manifest(
        directory,
        model=MODEL,
        artifact_id=directory.name,
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="ranker-v1",
        precision=Precision.FP32,
        architecture=MODEL,
    )
    signing_key = artifact_signing_key(SigningSettings())
    return push_artifact(open_store(StoreSettings()), directory, manifest, signing_key=signing_key)
