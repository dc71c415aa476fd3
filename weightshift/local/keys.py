"""The signing keys of a local stack, made on first use and kept with its other secrets."""

from pathlib import Path

from weightshift.artifacts.key_files import KeyFiles, key_files, write_key_pair
from weightshift.artifacts.signing_keys import KeyRole, SigningKey


def signing_environment(directory: Path) -> dict[str, str]:
    """Return the variable for whoever pushes artifacts."""
    return {"WEIGHTSHIFT_SIGNING_KEY_FILE": str(_keys(directory, KeyRole.ARTIFACT).private)}


def authorisation_environment(directory: Path) -> dict[str, str]:
    """Return the variable for the registry's own processes, which authorise releases."""
    return {"WEIGHTSHIFT_AUTHORISATION_KEY_FILE": str(_keys(directory, KeyRole.RELEASE).private)}


def accepted_environment(directory: Path) -> dict[str, str]:
    """Return the variables for the runtimes, which verify both."""
    return {
        "WEIGHTSHIFT_RUNTIME_ARTIFACT_KEYS_FILE": str(_keys(directory, KeyRole.ARTIFACT).public),
        "WEIGHTSHIFT_RUNTIME_RELEASE_KEYS_FILE": str(_keys(directory, KeyRole.RELEASE).public),
    }


def _keys(directory: Path, role: KeyRole) -> KeyFiles:
    secrets = directory / "secrets"
    files = key_files(secrets, role)
    return files if files.public.exists() else write_key_pair(SigningKey.generate(role), secrets)
