"""What a supervisor writes down about its stack, for the command line to read."""

import signal
from pathlib import Path

from pydantic import ValidationError

from weightshift.contracts.base import Message
from weightshift.contracts.identity import Service
from weightshift.errors import LocalStackError
from weightshift.local.addresses import Addresses
from weightshift.local.files import write_private
from weightshift.local.identity import ProcessIdentity

LOCK = "supervisor.lock"
"""Held in the stack's directory while a supervisor runs; holds that process's identity."""

MEND = signal.SIGUSR1
"""Asks a supervisor to start again what has ended."""


class StackState(Message):
    """A running stack. `environment` holds its tokens and keys, so the file is its owner's only.

    `mended` counts how often it was asked to start again what had ended; None of a supervisor that is too
    old to be asked. `failure` says why that did not work the last time; empty when it did.
    """

    supervisor: ProcessIdentity
    service: Service
    addresses: Addresses
    environment: dict[str, str]
    processes: dict[str, ProcessIdentity]
    mended: int | None = None
    failure: str = ""


def state_file(directory: Path) -> Path:
    """Where the state of the stack in `directory` is."""
    return directory / "stack.json"


def write_state(directory: Path, state: StackState) -> None:
    """Publish the state; its presence says that the stack is ready."""
    write_private(state_file(directory), state.model_dump_json(indent=2))


def read_state(directory: Path) -> StackState | None:
    """Return the state of a stack whose supervisor lives; None when there is none.

    Raises `LocalStackError` for a file that cannot be read.
    """
    path = state_file(directory)
    try:
        state = StackState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        raise LocalStackError(f"{path} cannot be read ({type(error).__name__}); remove it") from error
    return state if state.supervisor.is_alive else None


def read_supervisor(directory: Path) -> ProcessIdentity | None:
    """Return the supervisor that lives, also one whose stack is not ready yet."""
    try:
        identity = ProcessIdentity.model_validate_json((directory / LOCK).read_bytes())
    except (OSError, ValidationError):
        return None
    return identity if identity.is_alive else None
