"""`weightshift artifact push`, up to what the registry is told."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from weightshift.artifacts.artifact_statement import verify_bundle
from weightshift.artifacts.base import signature_key
from weightshift.artifacts.build import read_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.key_files import write_key_pair
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.contracts.manifest import ArtifactState

Run = Callable[..., Any]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    directory.mkdir()
    (directory / "vocabulary").write_bytes(b"weights")
    return directory


@pytest.fixture
def signing_key(tmp_path: Path) -> SigningKey:
    key = SigningKey.generate(KeyRole.ARTIFACT)
    os.environ["WEIGHTSHIFT_SIGNING_KEY_FILE"] = str(write_key_pair(key, tmp_path / "keys").private)
    return key


def push(run: Run, directory: Path, *more: str) -> Any:
    return run(
        "artifact",
        "push",
        str(directory),
        *("--model", "ranker", "--id", "v2", "--feature-schema", "ranker-v1"),
        *more,
    )


@pytest.mark.usefixtures("signing_key")
def test_push_stores_registers_and_says_what_is_next(run: Run, registry: Any, weights: Path) -> None:
    registry.answers["register_artifact"] = lambda record: record
    result = push(run, weights)
    assert result.code == 0
    assert "ranker v2 is stored, signed and pending" in result.out
    assert "next: weightshift artifact approve ranker v2" in result.out
    record = registry.calls[0][1]
    assert (record.model, record.artifact_id, record.feature_schema) == ("ranker", "v2", "ranker-v1")
    stored = [path.read_bytes() for path in (weights.parent / "store").rglob("*") if path.is_file()]
    assert b"weights" in stored


def test_what_is_pushed_is_signed(run: Run, registry: Any, weights: Path, signing_key: SigningKey) -> None:
    registry.answers["register_artifact"] = lambda record: record
    assert push(run, weights).code == 0
    record = registry.calls[0][1]
    store = FileObjectStore(root=weights.parent / "store")
    bundle = b"".join(store.stream(signature_key("ranker", record.signature_sha256)))
    keys = VerificationKeys.from_pem(signing_key.public_pem(), role=KeyRole.ARTIFACT, source="test")
    manifest = read_manifest(store, "ranker", record.manifest_sha256)
    verify_bundle(bundle, manifest=manifest, keys=keys)


@pytest.mark.usefixtures("signing_key")
def test_pushing_again_leaves_the_same_objects_and_the_same_record(
    run: Run, registry: Any, weights: Path
) -> None:
    registry.answers["register_artifact"] = lambda record: record
    objects = []
    for _ in range(2):
        assert push(run, weights).code == 0
        objects.append(sorted((weights.parent / "store").rglob("*")))
    records = [call[1] for call in registry.calls if call[0] == "register_artifact"]
    assert records[0] == records[1]
    assert objects[0] == objects[1]


def test_without_a_key_nothing_is_stored(run: Run, weights: Path) -> None:
    result = push(run, weights)
    assert result.code == 2
    assert "WEIGHTSHIFT_SIGNING_KEY_FILE" in result.err
    assert "--insecure-unsigned" in result.err
    assert not (weights.parent / "store").exists()


@pytest.mark.usefixtures("signing_key")
def test_unsigned_is_possible_only_by_saying_so(run: Run, registry: Any, weights: Path) -> None:
    registry.answers["register_artifact"] = lambda record: record
    result = push(run, weights, "--insecure-unsigned")
    assert "is stored, UNSIGNED and pending" in result.out
    assert registry.calls[0][1].signature_sha256 is None


@pytest.mark.parametrize("content", ["", "not a key", "-----BEGIN PRIVATE KEY-----\nhunter2\n"])
def test_an_unusable_key_is_named_and_not_repeated(run: Run, weights: Path, content: str) -> None:
    os.environ["WEIGHTSHIFT_SIGNING_KEY_FILE"] = str(weights / "key")
    (weights / "key").write_text(content)
    result = push(run, weights)
    assert result.code == 2
    assert "WEIGHTSHIFT_SIGNING_KEY" in result.err
    assert "hunter2" not in result.err


@pytest.mark.usefixtures("signing_key")
def test_push_prints_only_the_record_as_json(run: Run, registry: Any, weights: Path) -> None:
    registry.answers["register_artifact"] = lambda record: record
    assert json.loads(push(run, weights, "--json").out)["artifact_id"] == "v2"


def test_push_refuses_an_unknown_format(run: Run, weights: Path) -> None:
    result = push(run, weights, "--runtime", "pickle")
    assert result.code == 2
    assert "choose from pytorch-state-dict, safetensors" in result.err


@pytest.mark.usefixtures("signing_key")
@pytest.mark.parametrize(
    ("state", "step"),
    [
        (ArtifactState.PENDING, "next: weightshift artifact approve ranker v2"),
        (ArtifactState.READY, "next: weightshift release start ranker v2 -e ENVIRONMENT"),
        (ArtifactState.REJECTED, "push other weights under another id"),
    ],
)
def test_the_next_step_follows_from_the_artifacts_state(
    run: Run, registry: Any, weights: Path, state: ArtifactState, step: str
) -> None:
    registry.answers["register_artifact"] = lambda record: record.model_copy(update={"state": state})
    assert push(run, weights).out.splitlines()[-1].endswith(step)


@pytest.mark.usefixtures("signing_key")
@pytest.mark.parametrize(
    ("more", "is_unknown"),
    [((), False), (("--architecture", "ranker"), False), (("--architecture", "rankr"), True)],
)
def test_an_architecture_nobody_installed_here_is_named(
    run: Run, registry: Any, weights: Path, more: tuple[str, ...], is_unknown: bool
) -> None:
    registry.answers["register_artifact"] = lambda record: record
    result = push(run, weights, *more, "--json")
    assert result.code == 0
    assert json.loads(result.out)["artifact_id"] == "v2"
    assert ("no architecture 'rankr' is installed here" in result.err) is is_unknown


@pytest.mark.usefixtures("signing_key")
@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])
def test_weights_under_another_name_are_missed(run: Run, registry: Any, weights: Path, name: str) -> None:
    registry.answers["register_artifact"] = lambda record: record
    save_file({"weight": numpy.zeros(2, dtype=numpy.float32)}, weights / name)
    assert ("no file is named as safetensors weights are" in push(run, weights).err) is (name == "model.bin")
