"""What every object store promises, on a real file system and on a real S3 service."""

import hashlib
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from weightshift.artifacts.base import ObjectStore, blob_key, manifest_key
from weightshift.artifacts.build import build_manifest, read_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.open_store import open_store
from weightshift.artifacts.push import push_artifact
from weightshift.artifacts.s3 import PART_BYTES, S3ObjectStore
from weightshift.contracts.manifest import Manifest, Precision, WeightFormat
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, UnknownArtifact, UnsafeArtifact
from weightshift.local.s3 import S3Address, s3_server
from weightshift.settings import StoreSettings

LARGE = 3 * PART_BYTES + 12_345


@pytest.fixture(scope="session")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Address]:
    async with s3_server(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    if request.param == "file":
        return FileObjectStore(root=tmp_path / "store")
    address: S3Address = request.getfixturevalue("s3")
    for name, value in address.environment.items():
        monkeypatch.setenv(name, value)
    settings = StoreSettings()
    prefix = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
    return open_store(StoreSettings(url=f"{settings.url}/{prefix}", endpoint=settings.endpoint))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An artifact with a file of several parts, and small ones, two of them with the same content."""
    directory = tmp_path / "artifact"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(os.urandom(LARGE))
    (directory / "tokenizer" / "vocabulary").write_bytes(b"words")
    (directory / "tokenizer" / "copy").write_bytes(b"words")
    (directory / "config").write_bytes(b"settings")
    return directory


def manifest_of(directory: Path) -> Manifest:
    return build_manifest(
        directory,
        model="ranker",
        artifact_id="v41",
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="features-1",
        precision=Precision.FP32,
    )


def content_of(store: ObjectStore, key: str) -> bytes:
    return b"".join(store.stream(key))


def test_a_pushed_artifact_can_be_read_back(store: ObjectStore, directory: Path) -> None:
    manifest = manifest_of(directory)
    done: list[int] = []
    record = push_artifact(store, directory, manifest, done.append)
    assert sum(done) == manifest.total_bytes == LARGE + 18
    assert read_manifest(store, "ranker", record.manifest_sha256) == manifest
    assert record.manifest_uri == store.uri(manifest_key("ranker", manifest.digest()))
    for file in manifest.files:
        assert content_of(store, blob_key("ranker", file.sha256)) == (directory / file.path).read_bytes()


def test_a_second_push_sends_nothing(
    store: ObjectStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of(directory)
    first = push_artifact(store, directory, manifest)
    monkeypatch.setattr(store, "put_file", None)
    done: list[int] = []
    assert push_artifact(store, directory, manifest, done.append) == first
    assert sum(done) == manifest.total_bytes


@pytest.mark.parametrize("name", ["weights.bin", "config"])
def test_a_file_that_changed_since_it_was_hashed_is_not_stored(
    store: ObjectStore, directory: Path, name: str
) -> None:
    manifest = manifest_of(directory)
    path = directory / name
    path.write_bytes(b"changed" + path.read_bytes()[7:])
    with pytest.raises(DigestMismatch):
        push_artifact(store, directory, manifest)
    changed = next(file for file in manifest.files if file.path == name)
    assert not store.exists(blob_key("ranker", changed.sha256))
    assert not store.exists(manifest_key("ranker", manifest.digest()))


def test_a_file_replaced_by_a_link_is_not_read(store: ObjectStore, directory: Path) -> None:
    manifest = manifest_of(directory)
    (directory / "weights.bin").rename(directory.parent / "elsewhere")
    (directory / "weights.bin").symlink_to(directory.parent / "elsewhere")
    with pytest.raises(UnsafeArtifact):
        push_artifact(store, directory, manifest)


def test_an_existing_object_is_left_alone(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes("models/x", b"first")
    store.put_bytes("models/x", b"second")
    (tmp_path / "third").write_bytes(b"third")
    store.put_file("models/x", tmp_path / "third")
    assert content_of(store, "models/x") == b"first"


def test_a_stream_starts_where_it_is_told_to(store: ObjectStore) -> None:
    content = os.urandom(300_000)
    store.put_bytes("models/x", content)
    chunks = list(store.stream("models/x", chunk_bytes=65_536, offset=100_000))
    assert b"".join(chunks) == content[100_000:]
    assert max(len(chunk) for chunk in chunks) <= 65_536
    assert list(store.stream("models/x", offset=300_000)) == []


def test_a_range_ends_where_it_is_told_to_or_with_the_object(store: ObjectStore) -> None:
    content = os.urandom(300_000)
    store.put_bytes("models/x", content)
    middle = list(store.stream("models/x", chunk_bytes=65_536, offset=100_000, length=150_001))
    assert b"".join(middle) == content[100_000:250_001]
    assert b"".join(store.stream("models/x", offset=299_999, length=1)) == content[-1:]
    assert b"".join(store.stream("models/x", offset=299_999, length=9)) == content[-1:]
    assert list(store.stream("models/x", offset=300_000, length=9)) == []


def test_an_empty_object_is_an_object(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    store.put_file("models/empty", tmp_path / "empty", sha256=hashlib.sha256().hexdigest())
    assert store.exists("models/empty")
    assert list(store.stream("models/empty")) == []


def test_a_large_object_that_is_there_already_is_left_alone(store: ObjectStore, tmp_path: Path) -> None:
    store.put_bytes("models/x", b"first")
    (tmp_path / "large").write_bytes(os.urandom(LARGE))
    store.put_file("models/x", tmp_path / "large")
    assert content_of(store, "models/x") == b"first"


def test_a_missing_object_is_an_unknown_artifact(store: ObjectStore) -> None:
    assert not store.exists("models/missing")
    store.put_bytes("models/other", b"content")
    with pytest.raises(UnknownArtifact, match="models/missing"):
        next(store.stream("models/missing"))


def test_memory_stays_flat_in_the_size_of_a_file(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(8 * PART_BYTES)
    tracemalloc.start()
    try:
        store.put_file("models/large", path)
        for _ in store.stream("models/large"):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * PART_BYTES


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_an_object_stored_with_a_content_encoding_is_refused(store: ObjectStore, s3: S3Address) -> None:
    bucket, _, key = store.uri("models/encoded").removeprefix("s3://").partition("/")
    with closing(boto3.session.Session().client("s3", endpoint_url=s3.endpoint)) as client:
        client.put_object(Bucket=bucket, Key=key, Body=b"x", ContentEncoding="gzip")
    with pytest.raises(UnsafeArtifact, match="encoding"):
        next(store.stream("models/encoded"))


def test_a_service_that_is_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    store = S3ObjectStore(bucket="bucket", endpoint="http://127.0.0.1:1")
    with pytest.raises(ObjectStoreUnreachable) as caught:
        store.exists("models/x")
    assert "not-a-secret" not in str(caught.value)


class Uploads:
    """Watches the parts that a store sends, and can cut it off before one of them."""

    def __init__(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client: Any = store._client  # type: ignore[attr-defined]
        self.sent: list[int] = []
        self.cut_at: int | None = None
        self._upload_part = self.client.upload_part
        monkeypatch.setattr(self.client, "upload_part", self._send)

    def _send(self, **options: Any) -> Any:
        if options["PartNumber"] == self.cut_at:
            raise EndpointConnectionError(endpoint_url="http://cut-off")
        answer = self._upload_part(**options)
        self.sent.append(options["PartNumber"])
        return answer

    def unfinished(self, store: ObjectStore, key: str) -> int:
        bucket, _, name = store.uri(key).removeprefix("s3://").partition("/")
        found = self.client.list_multipart_uploads(Bucket=bucket, Prefix=name)
        return len(found.get("Uploads", ()))


@pytest.fixture
def uploads(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    return Uploads(store, monkeypatch)


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_an_interrupted_upload_goes_on_where_it_stopped(
    store: ObjectStore, uploads: Uploads, tmp_path: Path
) -> None:
    content = os.urandom(LARGE)
    path = tmp_path / "large"
    path.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    uploads.cut_at = 3
    with pytest.raises(ObjectStoreUnreachable):
        store.put_file("models/x", path, sha256=sha256)
    before = set(uploads.sent)
    assert before >= {1, 2}
    assert not store.exists("models/x")
    uploads.cut_at = None
    uploads.sent.clear()
    done: list[int] = []
    store.put_file("models/x", path, progress=done.append, sha256=sha256)
    assert set(uploads.sent) == {1, 2, 3, 4} - before
    assert sum(done) == LARGE
    assert content_of(store, "models/x") == content
    assert uploads.unfinished(store, "models/x") == 0


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_parts_of_other_content_are_sent_again(store: ObjectStore, uploads: Uploads, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE))
    uploads.cut_at = 4
    with pytest.raises(ObjectStoreUnreachable):
        store.put_file("models/x", path)
    uploads.cut_at = None
    content = os.urandom(LARGE)
    path.write_bytes(content)
    store.put_file("models/x", path, sha256=hashlib.sha256(content).hexdigest())
    assert content_of(store, "models/x") == content


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_file_that_changed_leaves_no_upload_behind(
    store: ObjectStore, uploads: Uploads, tmp_path: Path
) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE))
    with pytest.raises(DigestMismatch):
        store.put_file("models/x", path, sha256="0" * 64)
    assert uploads.unfinished(store, "models/x") == 0


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_an_upload_that_another_push_completes_meanwhile_is_done(
    store: ObjectStore, uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(LARGE)
    path = tmp_path / "large"
    path.write_bytes(content)
    complete = uploads.client.complete_multipart_upload

    def complete_twice(**options: Any) -> Any:
        complete(**options)
        return complete(**options)

    monkeypatch.setattr(uploads.client, "complete_multipart_upload", complete_twice)
    store.put_file("models/x", path, sha256=hashlib.sha256(content).hexdigest())
    assert content_of(store, "models/x") == content
