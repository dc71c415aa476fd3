import stat
from pathlib import Path

from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.local.keys import accepted_environment, authorisation_environment, signing_environment


def test_what_a_stack_signs_its_runtimes_accept(tmp_path: Path) -> None:
    accepted = accepted_environment(tmp_path)
    for role, private, public in (
        (KeyRole.ARTIFACT, signing_environment(tmp_path)["WEIGHTSHIFT_SIGNING_KEY_FILE"], "ARTIFACT"),
        (
            KeyRole.RELEASE,
            authorisation_environment(tmp_path)["WEIGHTSHIFT_AUTHORISATION_KEY_FILE"],
            "RELEASE",
        ),
    ):
        key = SigningKey.from_pem(Path(private).read_bytes(), role=role, source="test")
        pem = Path(accepted[f"WEIGHTSHIFT_RUNTIME_{public}_KEYS_FILE"]).read_bytes()
        assert VerificationKeys.from_pem(pem, role=role, source="test").accept(b"x", key.sign(b"x"))


def test_the_keys_are_kept_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    first = signing_environment(tmp_path)["WEIGHTSHIFT_SIGNING_KEY_FILE"]
    content = Path(first).read_bytes()
    assert stat.S_IMODE(Path(first).stat().st_mode) == 0o600
    assert Path(signing_environment(tmp_path)["WEIGHTSHIFT_SIGNING_KEY_FILE"]).read_bytes() == content
