"""Entry point of the `weightshift` command."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from weightshift.cli import (
    artifact,
    audit,
    demo,
    doctor,
    instance,
    keys,
    local,
    registry,
    release,
    target,
    token,
)
from weightshift.cli.context import Connections, Context
from weightshift.cli.local_hint import without_stack
from weightshift.cli.options import DIRECTORY, JSON, Handler, resolve
from weightshift.cli.output import Output
from weightshift.cli.problems import describe_problems
from weightshift.errors import InvalidInput, Unauthorised, Unreachable, WeightshiftError

_EXIT_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="weightshift",
        description="Move production inference from one set of weights to the next.",
        epilog="exit codes: 0 done, 1 failed, 2 bad input, 3 release rolled back or refused, 4 conflict, "
        "5 unreachable, 6 inconclusive and held",
    )
    parser.add_argument("--version", action="version", version=f"weightshift {version('weightshift')}")
    groups = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in (artifact, target, instance, release, audit, registry, token, keys, local, demo, doctor):
        group.add_commands(groups)
    return parser


def main(arguments: Sequence[str] | None = None, *, connections: Connections | None = None) -> int:
    """Run one command and return its exit code; every failure is printed as one message."""
    try:
        parsed = build_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    output = Output(json=_wants_json(parsed))
    try:
        resolve(parsed, DIRECTORY)
        _adopt_local_stack(parsed.dir)
        resolve(parsed, *parsed.options)
        context = Context(parsed, output, connections or Connections())
        handler: Handler = parsed.handler
        return asyncio.run(handler(context))
    except KeyboardInterrupt:
        output.line("interrupted")
        return _EXIT_INTERRUPTED
    except (Unreachable, Unauthorised) as error:
        hint = without_stack(parsed.dir)
        output.error(error, f"{str(error).rstrip('.')}. {hint}" if hint else str(error).rstrip("."))
        return error.exit_code
    except Exception as error:
        return _report(output, error)


def _wants_json(parsed: argparse.Namespace) -> bool:
    """Tell in what form to print, errors about other options included."""
    try:
        return JSON in parsed.options and bool(JSON.resolve(parsed.json))
    except InvalidInput:
        return False


def _adopt_local_stack(directory: Path) -> None:
    """Let the stack that runs in `directory`, if any, fill the variables that are not set."""
    if not directory.is_dir():
        return
    from weightshift.local import control  # noqa: PLC0415 - heavy, and of no use without a directory

    for name, value in control.stack_environment(directory).items():
        os.environ.setdefault(name, value)


def _report(output: Output, error: Exception) -> int:
    if isinstance(error, WeightshiftError):
        output.error(error, str(error))
        return error.exit_code
    if isinstance(error, ValidationError):
        output.error(error, "; ".join(describe_problems(error)))
        return 2
    if isinstance(error, OSError) and error.filename is not None:
        output.error(error, f"{error.filename}: {error.strerror}; choose another path, or mend this one")
        return 1
    output.error(error, f"unexpected {type(error).__name__}: {error}; please report it")
    return 1


def run() -> None:
    """Run the command as a process.

    It ends without interpreter clean-up: a process that has used Temporal's client may abort there
    after success, and a finished release would look like a failed one.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
