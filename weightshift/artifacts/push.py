"""Uploading an artifact: its files first, its manifest last, so that no manifest names missing bytes."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from weightshift.artifacts.artifact_statement import sign_manifest
from weightshift.artifacts.base import ObjectStore, blob_key, manifest_key, signature_key
from weightshift.artifacts.signing_keys import SigningKey
from weightshift.contracts.manifest import ArtifactRecord, Manifest, ManifestFile

UPLOAD_THREADS = 4


def push_artifact(
    store: ObjectStore,
    directory: Path,
    manifest: Manifest,
    progress: Callable[[int], None] | None = None,
    *,
    signing_key: SigningKey | None = None,
) -> ArtifactRecord:
    """Store an artifact's files, signature and manifest, and return the record to register.

    Without a `signing_key` the artifact is unsigned, and only runtimes that are told to load such ones do.

    `progress` gets bytes as they are done, from several threads but never at once; bytes that are
    stored already count too. Raises `DigestMismatch` when a file changed since the manifest was built,
    `UnsafeArtifact`, `ObjectStoreUnreachable`. A push that failed is simply repeated.
    """
    _store_files(store, directory, manifest, _serialised(progress))
    signature = None if signing_key is None else _store_signature(store, manifest, signing_key)
    digest = manifest.digest()
    key = manifest_key(manifest.model, digest)
    store.put_bytes(key, manifest.canonical_bytes())
    return ArtifactRecord(
        model=manifest.model,
        artifact_id=manifest.artifact_id,
        manifest_uri=store.uri(key),
        manifest_sha256=digest,
        feature_schema=manifest.feature_schema,
        signature_sha256=signature,
    )


def _store_files(
    store: ObjectStore, directory: Path, manifest: Manifest, report: Callable[[int], None]
) -> None:
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


def _store_signature(store: ObjectStore, manifest: Manifest, key: SigningKey) -> str:
    bundle = sign_manifest(manifest, key)
    digest = hashlib.sha256(bundle).hexdigest()
    store.put_bytes(signature_key(manifest.model, digest), bundle)
    return digest


def _serialised(progress: Callable[[int], None] | None) -> Callable[[int], None]:
    lock = Lock()

    def report(count: int) -> None:
        if progress is not None and count:
            with lock:
                progress(count)

    return report
