"""Options that an environment variable mirrors, and how a command declares what it takes."""

import argparse
import getpass
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from weightshift.cli.context import Context
from weightshift.errors import InvalidInput

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Handler: TypeAlias = Callable[[Context], Coroutine[None, None, int]]

_SWITCH_VALUES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True)
class Option:
    """One option. Its value is the flag's, else the variable's, else the default's."""

    flags: tuple[str, ...]
    variable: str
    help: str
    default: Any = None
    required: bool = False
    switch: bool = False
    parse: Callable[[str], Any] = str
    choices: Sequence[str] | None = None
    attribute: str | None = None

    @property
    def name(self) -> str:
        """The attribute of the parsed arguments that holds the value."""
        return self.attribute or self.flags[-1].lstrip("-").replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare the option; its help names the variable and the default."""
        default = f", default {self.default}" if self.default else ""
        text = f"{self.help} [{self.variable}{default}]".replace("%", "%%")
        if self.switch:
            parser.add_argument(*self.flags, dest=self.name, action="store_const", const=True, help=text)
        else:
            parser.add_argument(*self.flags, dest=self.name, help=text, metavar=self.name.upper())

    def resolve(self, given: object) -> Any:
        """Return the value in force. Raises `InvalidInput` naming the option and its variable."""
        # An empty variable is how many CI systems say "not set".
        text = (os.environ.get(self.variable) or None) if given is None else given
        if text is None:
            if self.required:
                raise InvalidInput(f"{self.name}: give {self.flags[-1]} or set {self.variable}.")
            return self.default
        try:
            return self._read(text)
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"{self.name}: {text!r} is not valid ({error}).") from error

    def _read(self, value: object) -> Any:
        if self.switch:
            return value is True or _SWITCH_VALUES[str(value).lower()]
        if self.choices is not None and value not in self.choices:
            raise ValueError(f"choose from {', '.join(self.choices)}")
        return self.parse(str(value))


DIRECTORY = Option(
    ("--dir",),
    "WEIGHTSHIFT_DIR",
    "state of the local stack; a running one fills unset variables",
    default=Path(".weightshift"),
    parse=Path,
)
JSON = Option(("--json",), "WEIGHTSHIFT_JSON", "print JSON", default=False, switch=True)
ENVIRONMENT = Option(("-e", "--environment"), "WEIGHTSHIFT_ENVIRONMENT", "environment", required=True)
OPERATOR = Option(
    ("--operator",), "WEIGHTSHIFT_OPERATOR", "who is responsible, default: the login name", parse=str.strip
)
REASON = Option(("--reason",), "WEIGHTSHIFT_REASON", "why, for the audit chain", default="")
TEMPORAL = (
    Option(("--temporal-address",), "WEIGHTSHIFT_TEMPORAL_ADDRESS", "host:port of Temporal"),
    Option(("--temporal-namespace",), "WEIGHTSHIFT_TEMPORAL_NAMESPACE", "namespace in Temporal"),
)
REGISTRY = (
    Option(
        ("--registry-url",),
        "WEIGHTSHIFT_REGISTRY_URL",
        "address of the registry; its token comes from WEIGHTSHIFT_REGISTRY_TOKEN only",
    ),
)
STORE = (
    Option(("--store-url",), "WEIGHTSHIFT_STORE_URL", "s3://bucket/prefix or file:///directory"),
    Option(("--store-endpoint",), "WEIGHTSHIFT_STORE_ENDPOINT", "address of an S3 service other than AWS"),
)


def operator_of(context: Context) -> str:
    """Return who is responsible: `--operator`, its variable, or the login name.

    Raises `InvalidInput` where the process has no login name.
    """
    if context.arguments.operator:
        return str(context.arguments.operator)
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise InvalidInput("operator: give --operator or set WEIGHTSHIFT_OPERATOR.") from error


def add_group(groups: Commands, name: str, summary: str) -> Commands:
    """Declare a group of commands (`weightshift NAME ...`)."""
    parser = groups.add_parser(name, help=summary, description=summary)
    return parser.add_subparsers(metavar="COMMAND", required=True)


def add_command(
    commands: Commands,
    name: str,
    handler: Handler,
    summary: str,
    *,
    positionals: Sequence[str] = (),
    options: Sequence[Option] = (),
    common: Sequence[Option] = (DIRECTORY, JSON),
) -> None:
    """Declare one command with its positional arguments and options."""
    parser = commands.add_parser(name, help=summary, description=summary)
    for positional in positionals:
        parser.add_argument(positional, metavar=positional.upper())
    everything = (*options, *common)
    for option in everything:
        option.add_to(parser)
    parser.set_defaults(handler=handler, options=everything)


def resolve(arguments: argparse.Namespace, *options: Option) -> None:
    """Replace what was not given as a flag by the variable's value or the default, in place.

    Raises one `InvalidInput` that names everything that is missing or unreadable.
    """
    problems = []
    for option in options:
        try:
            setattr(arguments, option.name, option.resolve(getattr(arguments, option.name)))
        except InvalidInput as problem:
            problems.append(str(problem))
    if problems:
        raise InvalidInput(" ".join(problems))
