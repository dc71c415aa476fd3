"""What was parsed of a file is what is hashed, however long the file was while it was parsed."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from runtime.artifact_cache import ArtifactCache
from runtime.download import Downloader
from runtime.hashing_reader import HashingReader
from runtime.recorded_file import RecordedFile
from weightshift.errors import DigestMismatch


@pytest.mark.parametrize("appended", [b"", b"more"])
@pytest.mark.parametrize("place", [-2, 0, 2])
def test_what_was_parsed_beyond_the_end_is_found(
    tmp_path: Path, store: Any, artifacts: Any, place: int, appended: bytes
) -> None:
    manifest = artifacts.push()
    file = manifest.files[0]
    cache = ArtifactCache(root=tmp_path, downloader=Downloader(store=store, max_artifact_bytes=1 << 30))
    path = tmp_path / "artifacts" / manifest.digest() / file.sha256
    with cache.fetch("ranker", manifest.digest(), lambda done, total: None) as cached:
        path.chmod(0o644)
        with path.open("ab") as longer:
            longer.write(appended)
        with path.open("rb") as source:
            recorded = RecordedFile(source.fileno())
            recorded.seek(file.bytes + place)
            recorded.read(8)
        os.truncate(path, file.bytes)
        reading = pytest.raises(DigestMismatch, match="changed while it was read")
        with reading if appended else nullcontext(), HashingReader(cached, file, recorded.spans) as reader:
            reader.finish()
