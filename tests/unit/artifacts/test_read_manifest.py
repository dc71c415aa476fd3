import hashlib
import json
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightshift.artifacts.base import manifest_key
from weightshift.artifacts.build import MAX_MANIFEST_BYTES, parse_manifest, read_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.contracts.manifest import (
    Manifest,
    ManifestFile,
    ManifestTensor,
    Precision,
    Requirements,
    TensorType,
    WeightFormat,
)
from weightshift.errors import DigestMismatch, InvalidInput, InvalidManifest, UnknownArtifact, UnsafeArtifact

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
DIGESTS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
FILES = st.lists(
    st.builds(
        ManifestFile,
        path=st.from_regex(r"[a-z0-9_-][a-z0-9._-]{0,20}", fullmatch=True).filter(
            lambda path: path != "manifest.json"
        ),
        sha256=DIGESTS,
        bytes=st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda file: file.path,
).map(tuple)
TENSORS = st.lists(
    st.builds(
        ManifestTensor,
        name=st.from_regex(r"[a-z.]{1,20}", fullmatch=True),
        dtype=st.sampled_from(TensorType),
        shape=st.lists(st.integers(0, 1 << 40), max_size=8).map(tuple),
    ),
    max_size=3,
    unique_by=lambda tensor: tensor.name,
).map(tuple)
MANIFESTS = st.builds(
    Manifest,
    model=NAMES,
    artifact_id=NAMES,
    runtime=st.sampled_from(WeightFormat),
    feature_schema=NAMES,
    precision=st.sampled_from(Precision),
    files=FILES,
    architecture=st.none() | NAMES,
    requires=st.none() | st.builds(Requirements, torch=st.none() | st.text(max_size=20)),
    base_artifact_id=st.none() | NAMES,
    created_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    labels=st.dictionaries(NAMES, st.text(max_size=20), max_size=3),
    tensors=st.none() | TENSORS,
)

MANIFEST = Manifest(
    model="ranker",
    artifact_id="v41",
    runtime=WeightFormat.SAFETENSORS,
    feature_schema="features-1",
    precision=Precision.FP32,
    files=(ManifestFile(path="weights", sha256="a" * 64, bytes=1),),
)


@pytest.fixture
def store(tmp_path: Path) -> FileObjectStore:
    return FileObjectStore(root=tmp_path)


def put(store: FileObjectStore, content: bytes, model: str = "ranker") -> str:
    digest = hashlib.sha256(content).hexdigest()
    store.put_bytes(manifest_key(model, digest), content)
    return digest


@settings(max_examples=30, deadline=None)
@given(MANIFESTS)
def test_a_manifest_survives_its_canonical_bytes(manifest: Manifest) -> None:
    parsed = parse_manifest(manifest.canonical_bytes())
    assert parsed == manifest
    assert parsed.digest() == manifest.digest()


def test_a_stored_manifest_is_read_back(store: FileObjectStore) -> None:
    digest = put(store, MANIFEST.canonical_bytes())
    assert digest == MANIFEST.digest()
    assert read_manifest(store, "ranker", digest) == MANIFEST


def test_other_bytes_under_the_digest_are_refused_before_parsing(store: FileObjectStore) -> None:
    store.put_bytes(manifest_key("ranker", MANIFEST.digest()), b"{ not even JSON")
    with pytest.raises(DigestMismatch):
        read_manifest(store, "ranker", MANIFEST.digest())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"model":"ranker","model":"other"}', "key occurs twice"),
        (b'{"model":NaN}', "NaN"),
        (b"[" * 100_000, "strict JSON"),
        (b"[]", "invalid"),
        (b"\xff\xfe", "strict JSON"),
        (json.dumps(json.loads(MANIFEST.canonical_bytes()), indent=1).encode(), "canonical"),
        (MANIFEST.canonical_bytes().replace(b'"fp32"', b'"fp32","url":"http://127.0.0.1/"'), "url"),
        (MANIFEST.canonical_bytes().replace(b'"weights"', b'"../weights"'), "path"),
    ],
)
def test_a_manifest_with_the_right_digest_can_still_be_invalid(
    store: FileObjectStore, content: bytes, reason: str
) -> None:
    digest = put(store, content)
    with pytest.raises(InvalidManifest, match=reason):
        read_manifest(store, "ranker", digest)


def test_a_manifest_that_is_too_large_is_not_read_to_its_end(store: FileObjectStore) -> None:
    digest = put(store, b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(UnsafeArtifact, match="larger than"):
        read_manifest(store, "ranker", digest)


def test_a_manifest_of_another_model_is_refused(store: FileObjectStore) -> None:
    digest = put(store, MANIFEST.canonical_bytes(), model="other")
    with pytest.raises(InvalidManifest, match="of model ranker"):
        read_manifest(store, "other", digest)


def test_a_missing_manifest_is_an_unknown_artifact(store: FileObjectStore) -> None:
    with pytest.raises(UnknownArtifact):
        read_manifest(store, "ranker", "0" * 64)


@pytest.mark.parametrize(("model", "digest"), [("../x", "0" * 64), ("ranker", "../x"), ("ranker", "A" * 64)])
def test_a_key_is_never_made_of_anything_but_names_and_digests(
    store: FileObjectStore, model: str, digest: str
) -> None:
    with pytest.raises(InvalidInput):
        read_manifest(store, model, digest)
