import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys

Run = Callable[..., Any]


@pytest.mark.parametrize("role", KeyRole)
def test_a_key_pair_is_written_that_signs_and_verifies(run: Run, tmp_path: Path, role: KeyRole) -> None:
    result = run("keys", "generate", "--role", role.value, "--out", str(tmp_path / "keys"), "--json")
    assert result.code == 0
    answer = json.loads(result.out)
    private, public = Path(answer["private_key"]), Path(answer["public_key"])
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    key = SigningKey.from_pem(private.read_bytes(), role=role, source="test")
    keys = VerificationKeys.from_pem(public.read_bytes(), role=role, source="test")
    assert keys.accept(b"message", key.sign(b"message"))
    assert answer["fingerprint"] == key.fingerprint


def test_the_private_key_is_not_printed(run: Run, tmp_path: Path) -> None:
    result = run("keys", "generate", "--role", "artifact", "--out", str(tmp_path))
    secret = (tmp_path / "artifact-key.pem").read_text().splitlines()[1]
    assert secret not in result.out + result.err
    assert "artifact-key.pub.pem" in result.out


def test_an_existing_key_is_never_replaced(run: Run, tmp_path: Path) -> None:
    command = ("keys", "generate", "--role", "release", "--out", str(tmp_path))
    assert run(*command).code == 0
    before = (tmp_path / "release-key.pem").read_bytes()
    result = run(*command)
    assert result.code == 2
    assert "is there already" in result.err
    assert (tmp_path / "release-key.pem").read_bytes() == before


def test_a_directory_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("keys", "generate", "--role", "release", "--out", str(tmp_path / "file"))
    assert result.code == 2
    assert "out:" in result.err


def test_an_unknown_role_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("keys", "generate", "--role", "root", "--out", str(tmp_path)).code == 2
