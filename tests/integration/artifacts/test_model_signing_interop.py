"""The public `model-signing` package, in an environment of its own, verifies what a push has signed."""

import subprocess
import venv
from pathlib import Path

import pytest

from weightshift.artifacts.artifact_statement import sign_manifest
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.key_files import KeyFiles, write_key_pair
from weightshift.artifacts.signing_keys import KeyRole, SigningKey
from weightshift.contracts.manifest import Precision, WeightFormat

# Without pyOpenSSL this version fails when it is imported.
PACKAGES = ("model-signing==1.1.1", "pyOpenSSL>=25")
INSTALL_SECONDS = 240

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model-signing")
    venv.create(directory, with_pip=True)
    python = directory / "bin/python"
    command = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("model-signing could not be installed in time")
    if done.returncode != 0:
        pytest.skip(f"model-signing cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    directory = tmp_path / "v41"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "weights.bin").write_bytes(bytes(range(256)) * 64)
    (directory / "tokenizer" / "vocabulary.txt").write_bytes(b"words")
    (directory / "config.json").write_bytes(b"{}")
    return directory


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return write_key_pair(SigningKey.generate(KeyRole.ARTIFACT), tmp_path / "keys")


@pytest.fixture
def signature(artifact: Path, keys: KeyFiles, tmp_path: Path) -> Path:
    manifest = build_manifest(
        artifact,
        model="ranker",
        artifact_id="v41",
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="features-1",
        precision=Precision.FP32,
    )
    key = SigningKey.from_pem(keys.private.read_bytes(), role=KeyRole.ARTIFACT, source="test")
    path = tmp_path / "model.sig"
    path.write_bytes(sign_manifest(manifest, key))
    return path


def verify(python: Path, artifact: Path, signature: Path, public: Path) -> "subprocess.CompletedProcess[str]":
    options = ("--signature", str(signature), "--public_key", str(public))
    return subprocess.run(
        [str(python), "-m", "model_signing", "verify", "key", str(artifact), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_pushed_directory_verifies(verifier: Path, artifact: Path, signature: Path, keys: KeyFiles) -> None:
    done = verify(verifier, artifact, signature, keys.public)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verification succeeded" in done.stdout


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
def test_a_directory_that_is_not_the_pushed_one_does_not(
    verifier: Path, artifact: Path, signature: Path, keys: KeyFiles, change: str
) -> None:
    match change:
        case "changed":
            (artifact / "weights.bin").write_bytes(b"other")
        case "added":
            (artifact / "more.txt").write_bytes(b"more")
        case "removed":
            (artifact / "config.json").unlink()
    assert verify(verifier, artifact, signature, keys.public).returncode != 0


def test_another_key_does_not(verifier: Path, artifact: Path, signature: Path, tmp_path: Path) -> None:
    other = write_key_pair(SigningKey.generate(KeyRole.ARTIFACT), tmp_path / "other")
    assert verify(verifier, artifact, signature, other.public).returncode != 0
