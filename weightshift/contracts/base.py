"""The two kinds of message, and the constrained strings they are made of."""

import re
import unicodedata
from datetime import timedelta
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""A model, environment, artifact or instance name: safe in paths, labels and workflow ids."""

Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
"""A SHA-256 in lower-case hexadecimal."""

LONGEST_DURATION = timedelta(days=366)
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _parse_duration(value: object) -> object:
    """Read `90`, `"90s"`, `"1.5m"`, `"2h"`; everything else is left to pydantic."""
    if isinstance(value, str) and (match := _DURATION.match(value.strip())):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2]]
        if seconds > LONGEST_DURATION.total_seconds():
            raise ValueError(f"at most {LONGEST_DURATION.days} days")
        return timedelta(seconds=seconds)
    return value


Duration = Annotated[timedelta, BeforeValidator(_parse_duration), Field(ge=timedelta(), le=LONGEST_DURATION)]
"""A length of time, 0 to 366 days: seconds as a number, or a string with a unit (ms, s, m, h, d)."""

PositiveDuration = Annotated[
    timedelta, BeforeValidator(_parse_duration), Field(gt=timedelta(), le=LONGEST_DURATION)
]
"""A `Duration` longer than nothing."""


def printable(value: str) -> str:
    """Return the text. Raises `ValueError` for characters that a database or a terminal chokes on."""
    if clean_text(value, longest=len(value)) != value:
        raise ValueError("holds control characters")
    return value


Text = Annotated[str, StringConstraints(max_length=1_000), AfterValidator(printable)]
"""Free text by people: at most 1,000 characters, none of which a database or a terminal chokes on."""


def _one_line(value: str) -> str:
    if "\n" in printable(value) or "\t" in value:
        raise ValueError("holds more than one line")
    return value


Identifier = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_one_line)]
"""An id or a person's name as somebody else chose it: one printable line of 1 to 200 characters."""


def _cleaned(value: object) -> object:
    return clean_text(value) if isinstance(value, str) else value


ReportedText = Annotated[str, BeforeValidator(_cleaned)]
"""Text by a program about itself, cleaned and never refused: a report counts whatever its wording."""

Count = Annotated[int, Field(ge=0, le=(1 << 53) - 1)]
"""A number that JSON and the database both hold exactly."""

Revision = Annotated[int, Field(gt=0, le=(1 << 53) - 1)]
"""The number of a published target: a `Count` that starts at 1."""

Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A finite amount of something."""


def clean_text(value: str, *, longest: int = 1_000) -> str:
    """Return the text without control characters and lone surrogates, cut to `longest` characters."""
    return "".join(
        character
        for character in value
        if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cs"}
    )[:longest]


class Message(BaseModel):
    """What our own processes send each other; tolerant, so that versions can differ in a roll-out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Document(BaseModel):
    """What people write (manifest, plan); unknown fields are refused, so a typo never passes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def describe_problems(error: ValidationError) -> str:
    """Return what is wrong in one sentence, by field, without repeating the input (it may be a secret)."""
    problems = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(str(part) for part in problem["loc"])
        problems.append(f"{field}: {problem['msg']}" if field else problem["msg"])
    return "; ".join(problems)
