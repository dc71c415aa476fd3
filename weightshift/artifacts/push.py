"""Uploading an artifact: its files first, its manifest last, so that no manifest names missing bytes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from weightshift.artifacts.base import ObjectStore, blob_key, manifest_key
from weightshift.contracts.manifest import ArtifactRecord, Manifest, ManifestFile

UPLOAD_THREADS = 4


def push_artifact(
    store: ObjectStore,
    directory: Path,
    manifest: Manifest,
    progress: Callable[[int], None] | None = None,
) -> ArtifactRecord:
    """Store an artifact's files and manifest, and return the record to register.

    `progress` gets bytes as they are done, from several threads but never at once; bytes that are
    stored already count too. Raises `DigestMismatch` when a file changed since the manifest was built,
    `UnsafeArtifact`, `ObjectStoreUnreachable`. A push that failed is simply repeated.
    """
    report = _serialised(progress)
    distinct = {file.sha256: file for file in manifest.files}

    def push(file: ManifestFile) -> None:
        key = blob_key(manifest.model, file.sha256)
        if store.exists(key):
            report(file.bytes)
        else:
            store.put_file(key, directory / file.path, progress=report, sha256=file.sha256)

    with ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="push") as pool:
        list(pool.map(push, distinct.values()))
    report(manifest.total_bytes - sum(file.bytes for file in distinct.values()))
    digest = manifest.digest()
    key = manifest_key(manifest.model, digest)
    store.put_bytes(key, manifest.canonical_bytes())
    return ArtifactRecord(
        model=manifest.model,
        artifact_id=manifest.artifact_id,
        manifest_uri=store.uri(key),
        manifest_sha256=digest,
        feature_schema=manifest.feature_schema,
    )


def _serialised(progress: Callable[[int], None] | None) -> Callable[[int], None]:
    lock = Lock()

    def report(count: int) -> None:
        if progress is not None and count:
            with lock:
                progress(count)

    return report
