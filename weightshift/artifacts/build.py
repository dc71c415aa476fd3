"""Making a manifest from a directory of weights, and reading one back from a store."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from weightshift.artifacts.base import ObjectStore, manifest_key, read_object
from weightshift.artifacts.files import hash_file, list_files
from weightshift.artifacts.strict_json import parse_strict
from weightshift.artifacts.tensors import read_tensors
from weightshift.contracts.base import Digest, Name, describe_problems
from weightshift.contracts.manifest import Manifest, ManifestFile, Precision, Requirements, WeightFormat
from weightshift.errors import InvalidInput, InvalidManifest

MAX_MANIFEST_BYTES = 4 << 20
HASHING_THREADS = 8

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_DIGEST: TypeAdapter[str] = TypeAdapter(Digest)


def build_manifest(  # noqa: PLR0913 - one argument per field of the manifest
    directory: Path,
    *,
    model: str,
    artifact_id: str,
    runtime: WeightFormat,
    feature_schema: str,
    precision: Precision,
    architecture: str | None = None,
    requires: Requirements | None = None,
    base_artifact_id: str | None = None,
    created_at: datetime | None = None,
    labels: dict[str, str] | None = None,
) -> Manifest:
    """Hash every file below a directory, several at a time, and return the manifest.

    Memory stays flat in the files' sizes. Raises `InvalidManifest` for a field or path that is not
    allowed, `UnsafeArtifact` for anything but regular files and for weights that no runtime would load.
    """
    paths = _checked_paths(directory)
    tensors = read_tensors(directory, paths, runtime)
    files = _hash_all(directory, paths)
    try:
        return Manifest(
            model=model,
            artifact_id=artifact_id,
            runtime=runtime,
            feature_schema=feature_schema,
            precision=precision,
            files=files,
            architecture=architecture,
            requires=requires,
            base_artifact_id=base_artifact_id,
            created_at=created_at,
            labels=labels or {},
            tensors=tensors,
        )
    except ValidationError as error:
        raise InvalidManifest(f"No manifest for {directory}: {describe_problems(error)}.") from error


def read_manifest(store: ObjectStore, model: str, digest: str) -> Manifest:
    """Fetch a manifest by its digest, which is checked before anything is parsed.

    Raises `UnknownArtifact`, `DigestMismatch`, `InvalidManifest`, `ObjectStoreUnreachable`.
    """
    try:
        key = manifest_key(_NAME.validate_python(model), _DIGEST.validate_python(digest))
    except ValidationError as error:
        raise InvalidInput(f"Not a model and a manifest digest: {describe_problems(error)}.") from error
    manifest = parse_manifest(read_object(store, key, sha256=digest, max_bytes=MAX_MANIFEST_BYTES))
    if manifest.model != model:
        raise InvalidManifest(f"Manifest {digest[:12]} is of model {manifest.model}, not of {model}.")
    return manifest


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest from its canonical bytes; no other spelling of it counts. Raises `InvalidManifest`."""
    try:
        # Already parsed strictly, so the lenient reading of spelled-out types is exact.
        manifest = Manifest.model_validate(parse_strict(content))
    except ValidationError as error:
        raise InvalidManifest(f"The manifest is invalid: {describe_problems(error)}.") from error
    except ValueError as error:
        raise InvalidManifest(f"The manifest is not strict JSON: {error}.") from error
    if manifest.canonical_bytes() != content:
        raise InvalidManifest("The manifest is not in canonical form (RFC 8785); build it again.")
    return manifest


def _checked_paths(directory: Path) -> tuple[str, ...]:
    if not directory.is_dir():
        raise InvalidManifest(f"{directory} is not a directory; name the one with the weights.")
    paths = list_files(directory)
    for path in paths:
        _check_path(path)
    return paths


def _hash_all(directory: Path, paths: tuple[str, ...]) -> tuple[ManifestFile, ...]:
    with ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="hash") as pool:
        hashes = pool.map(lambda path: _hash(directory, path), paths)
        return tuple(
            ManifestFile(path=path, sha256=digest, bytes=size)
            for path, (digest, size) in zip(paths, hashes, strict=True)
        )


def _check_path(path: str) -> None:
    """Refuse a path before anything is hashed: with large files that would be minutes later."""
    try:
        ManifestFile(path=path, sha256="0" * 64, bytes=0)
    except ValidationError as error:
        raise InvalidManifest(f"{path!r} cannot be in an artifact: {describe_problems(error)}.") from error


def _hash(directory: Path, path: str) -> tuple[str, int]:
    try:
        return hash_file(directory, path)
    except OSError as error:
        raise InvalidManifest(f"{path!r} cannot be read ({error.strerror}); check the disk.") from error
