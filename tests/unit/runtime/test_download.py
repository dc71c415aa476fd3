import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.download import Downloader
from weightshift.artifacts.base import blob_key
from weightshift.contracts.manifest import Manifest
from weightshift.errors import DigestMismatch, ObjectStoreUnreachable, UnknownArtifact, UnsafeArtifact

MODEL = "ranker"
WEIGHTS = 0
Download = Callable[..., None]


@pytest.fixture
def download(tmp_path: Path) -> Download:
    def run(store: Any, manifest: Manifest, *, max_artifact_bytes: int = 1 << 30) -> None:
        downloader = Downloader(store=store, max_artifact_bytes=max_artifact_bytes)
        directory = os.open(tmp_path, os.O_RDONLY)
        try:
            downloader.download(MODEL, manifest.digest(), directory, lambda done, total: None)
        finally:
            os.close(directory)

    return run


def test_an_endless_object_is_cut_off_at_its_size(download: Download, store: Any, artifacts: Any) -> None:
    manifest = artifacts.push()
    served = 0

    class Endless(type(store)):  # type: ignore[misc]
        def stream(
            self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
        ) -> Iterator[bytes]:
            nonlocal served
            if "manifests" in key:
                yield from store.stream(key)
                return
            while True:
                served += 512
                yield bytes(512)

    with pytest.raises(DigestMismatch, match="longer"):
        download(Endless(), manifest)
    assert served <= manifest.files[WEIGHTS].bytes + 512


def test_an_artifact_over_the_limit_is_refused_before_its_files(
    download: Download, store: Any, artifacts: Any
) -> None:
    manifest = artifacts.push()
    with pytest.raises(UnsafeArtifact, match="max_artifact_bytes"):
        download(store, manifest, max_artifact_bytes=manifest.total_bytes - 1)


def test_a_cut_stream_goes_on_where_it_stopped(download: Download, store: Any, artifacts: Any) -> None:
    manifest = artifacts.push()
    offsets: list[int] = []

    class Cutting(type(store)):  # type: ignore[misc]
        def stream(
            self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
        ) -> Iterator[bytes]:
            chunks = store.stream(key, offset=offset, length=length)
            yield next(chunks)
            if manifest.files[WEIGHTS].sha256 in key and len(offsets) < 2:
                offsets.append(offset)
                raise ObjectStoreUnreachable
            yield from chunks

    download(Cutting(), manifest)
    assert offsets == [0, 512]


def test_a_store_that_stays_away_is_reported_as_such(
    download: Download, store: Any, artifacts: Any, tmp_path: Path
) -> None:
    manifest = artifacts.push()

    class Away(type(store)):  # type: ignore[misc]
        def stream(
            self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
        ) -> Iterator[bytes]:
            if "blobs" in key:
                raise ObjectStoreUnreachable
            return store.stream(key)  # type: ignore[no-any-return]

    with pytest.raises(ObjectStoreUnreachable):
        download(Away(), manifest)
    assert not (tmp_path / "complete").exists()


def test_a_missing_file_is_unknown(download: Download, store: Any, artifacts: Any) -> None:
    manifest = artifacts.push()
    del store.objects[blob_key(MODEL, manifest.files[WEIGHTS].sha256)]
    with pytest.raises(UnknownArtifact):
        download(store, manifest)
