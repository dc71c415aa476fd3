import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from weightshift.artifacts.build import build_manifest
from weightshift.contracts.manifest import MAX_FILES, Manifest, Precision, WeightFormat
from weightshift.errors import InvalidManifest, UnsafeArtifact


def build(directory: Path, **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "model": "ranker",
        "artifact_id": "v41",
        "runtime": WeightFormat.SAFETENSORS,
        "feature_schema": "features-1",
        "precision": Precision.FP32,
    }
    return build_manifest(directory, **(values | changes))


def test_every_file_is_listed_with_its_digest_and_size(tmp_path: Path) -> None:
    content = os.urandom((3 << 20) + 17)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "weights.bin").write_bytes(content)
    (tmp_path / "tokenizer" / "vocabulary.txt").write_bytes(b"")
    manifest = build(tmp_path, architecture="ranker", labels={"team": "search"})
    assert [(file.path, file.bytes) for file in manifest.files] == [
        ("tokenizer/vocabulary.txt", 0),
        ("weights.bin", len(content)),
    ]
    assert manifest.files[1].sha256 == hashlib.sha256(content).hexdigest()
    assert (manifest.architecture, manifest.labels) == ("ranker", {"team": "search"})


def test_the_same_files_have_the_same_digest_wherever_they_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for file in ("b", "a"):
            (tmp_path / name / file).write_text(file)
    assert build(tmp_path / "one").digest() == build(tmp_path / "two").digest()


@pytest.mark.parametrize(
    "path", [".hidden", "with space", "a/b/c/d/e", "manifest.json", "weights\n", "ümlaut", ".git/config"]
)
def test_a_path_that_is_not_allowed_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("x")
    with pytest.raises(InvalidManifest) as caught:
        build(tmp_path)
    assert repr(path)[:-1] in str(caught.value)


def test_paths_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    for name in ("Weights", "weights"):
        (tmp_path / name).write_text(name)
    with pytest.raises(InvalidManifest, match="differ only in case"):
        build(tmp_path)


def test_a_link_to_a_file_outside_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (tmp_path / "secret").write_text("secret")
    (directory / "weights").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsafeArtifact, match="weights"):
        build(directory)


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / "etc").symlink_to("/etc")
    with pytest.raises(UnsafeArtifact, match="etc"):
        build(directory)


def test_a_file_with_a_second_name_elsewhere_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "artifact"
    directory.mkdir()
    (directory / "weights").write_text("x")
    (tmp_path / "other-name").hardlink_to(directory / "weights")
    with pytest.raises(UnsafeArtifact, match="one link"):
        build(directory)


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights")
    with pytest.raises(UnsafeArtifact, match="weights"):
        build(tmp_path)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="no files"):
        build(tmp_path)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match="not a directory"):
        build(tmp_path / "missing")


def test_too_many_files_are_refused_before_any_is_hashed(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / str(number)).touch()
    with pytest.raises(InvalidManifest, match=str(MAX_FILES)):
        build(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("model", "../etc"), ("artifact_id", ""), ("precision", "int3")]
)
def test_an_invalid_field_is_named(tmp_path: Path, field: str, value: str) -> None:
    (tmp_path / "weights").write_text("x")
    with pytest.raises(InvalidManifest, match=field):
        build(tmp_path, **{field: value})
