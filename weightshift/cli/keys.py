"""`weightshift keys`: make the keys that artifacts and releases are signed with."""

from pathlib import Path

from weightshift.cli.context import Context
from weightshift.cli.options import Commands, Option, add_command, add_group
from weightshift.errors import InvalidInput

_ROLE = Option(
    ("--role",),
    "WEIGHTSHIFT_KEY_ROLE",
    "artifact (signs what is pushed) or release (authorises what is published)",
    required=True,
    choices=["artifact", "release"],
)
_OUT = Option(("--out",), "WEIGHTSHIFT_KEY_DIRECTORY", "directory to write to", required=True, parse=Path)


def add_commands(groups: Commands) -> None:
    """Declare the group."""
    commands = add_group(groups, "keys", "make signing keys")
    add_command(commands, "generate", generate, "make a key pair", options=(_ROLE, _OUT))


async def generate(context: Context) -> int:
    """Write a new key pair; an existing one is never replaced."""
    from weightshift.artifacts.key_files import write_key_pair  # noqa: PLC0415 - only this command needs it
    from weightshift.artifacts.signing_keys import KeyRole, SigningKey  # noqa: PLC0415

    arguments = context.arguments
    key = SigningKey.generate(KeyRole(arguments.role))
    try:
        files = write_key_pair(key, arguments.out)
    except OSError as error:
        raise InvalidInput(f"out: nothing can be written to {arguments.out} ({error.strerror}).") from error
    context.output.result(
        {
            "role": arguments.role,
            "private_key": str(files.private),
            "public_key": str(files.public),
            "fingerprint": key.fingerprint,
        },
        f"private key: {files.private} (keep it where only its user can read it)",
        f"public key: {files.public} (for whoever verifies)",
        f"fingerprint: {key.fingerprint}",
    )
    return 0
