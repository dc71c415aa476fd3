import errno
import os
from pathlib import Path

import pytest

from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.open_store import open_store
from weightshift.artifacts.s3 import S3ObjectStore
from weightshift.errors import InvalidInput, ObjectStoreUnreachable, UnknownArtifact
from weightshift.settings import StoreSettings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> FileObjectStore:
    return FileObjectStore(root=root)


def test_an_object_is_a_read_only_file(store: FileObjectStore, root: Path) -> None:
    store.put_bytes("models/ranker/manifests/x.json", b"content")
    path = root / "models/ranker/manifests/x.json"
    assert path.read_bytes() == b"content"
    assert path.stat().st_mode & 0o777 == 0o444
    assert store.uri("models/ranker/manifests/x.json") == path.as_uri()


@pytest.mark.parametrize("failing", ["fsync", "write"])
def test_a_full_disk_leaves_nothing_behind(
    store: FileObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", refuse)
    else:
        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ObjectStoreUnreachable, match="No space"):
        store.put_bytes("models/x", b"content")
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_root_that_is_a_file_is_unreachable(store: FileObjectStore, root: Path) -> None:
    root.write_text("not a directory")
    with pytest.raises(ObjectStoreUnreachable):
        store.put_bytes("models/x", b"content")


def test_a_share_that_is_not_mounted_is_unreachable_and_holds_no_opinion(
    store: FileObjectStore, root: Path
) -> None:
    with pytest.raises(ObjectStoreUnreachable, match="check WEIGHTSHIFT_STORE_URL"):
        next(store.stream("models/x"))
    root.mkdir()
    with pytest.raises(UnknownArtifact):
        next(store.stream("models/x"))


@pytest.mark.parametrize("key", ["../x", "a/../b", "/etc/passwd", "a//b", "", ".hidden", "a\n", "a/b\x00"])
def test_a_key_outside_the_root_is_refused(store: FileObjectStore, root: Path, key: str) -> None:
    with pytest.raises(InvalidInput):
        store.put_bytes(key, b"content")
    with pytest.raises(InvalidInput):
        next(store.stream(key))
    assert not root.exists()


def test_the_url_chooses_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file_store = open_store(StoreSettings(url=f"file://{tmp_path}/with%20space"))
    assert isinstance(file_store, FileObjectStore)
    assert file_store.uri("a/b") == f"file://{tmp_path}/with%20space/a/b"
    s3_store = open_store(StoreSettings(url="s3://bucket/some/prefix/", endpoint="http://127.0.0.1:1"))
    assert isinstance(s3_store, S3ObjectStore)
    assert s3_store.uri("a/b") == "s3://bucket/some/prefix/a/b"
    assert open_store(StoreSettings(url="s3://bucket")).uri("a") == "s3://bucket/a"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "file://host/etc",
        "file:///",
        "/etc",
        "s3://",
        "s3://bucket/prefix?endpoint=http://elsewhere",
        "",
    ],
)
def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="WEIGHTSHIFT_STORE_URL"):
        open_store(StoreSettings(url=url))
