"""What was typed wrong in a plan, an option or a variable, in words that a person can act on. Pure."""

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from weightshift import settings
from weightshift.contracts.base import LONGEST_DURATION, NAME_PATTERN

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_NO_DURATION = "must be a length of time, such as 90, 90s, 10m, 1.5h or 2d"
_NO_MAPPING = "must be a mapping of fields to values"
_WORDS = {
    "extra_forbidden": "there is no such field; check how it is spelt",
    "missing": "is required",
    "time_delta_type": _NO_DURATION,
    "time_delta_parsing": _NO_DURATION,
    "model_type": _NO_MAPPING,
    "model_attributes_type": _NO_MAPPING,
    "dict_type": _NO_MAPPING,
    "list_type": "must be a list",
    "tuple_type": "must be a list",
}
_DURATION_BOUNDS = {
    "greater_than": "must be longer than nothing",
    "greater_than_equal": "must not be negative",
    "less_than_equal": f"must be at most {LONGEST_DURATION.days} days",
}
_NO_NAME = "must be 1 to 100 letters, digits, dots, dashes and underscores, with a letter or a digit first"


def describe_problems(error: ValidationError) -> list[str]:
    """Return a line for each problem: `stages.1.weight: must be ...`; a setting is named by its variable."""
    prefix = _prefix(error.title)
    problems = error.errors(include_url=False, include_input=False)
    lines = []
    for problem in problems:
        if problem["type"] == "too_short" and any(_is_within(other, problem) for other in problems):
            continue  # it only lacks what was unusable
        place = ".".join(str(part) for part in problem["loc"])
        name = place if prefix is None else f"{prefix}{place.upper()}"
        lines.append(f"{name}: {_words(problem)}" if place else _words(problem))
    return lines


def _is_within(problem: "ErrorDetails", outer: "ErrorDetails") -> bool:
    place = outer["loc"]
    return len(problem["loc"]) > len(place) and problem["loc"][: len(place)] == place


def _words(problem: "ErrorDetails") -> str:
    context: dict[str, Any] = problem.get("ctx", {})
    if context.get("pattern") == NAME_PATTERN:
        return _NO_NAME
    if "timedelta" in problem["msg"]:
        return _DURATION_BOUNDS.get(problem["type"], _NO_DURATION)
    text = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return _WORDS.get(problem["type"], text)


def _prefix(title: str) -> str | None:
    """Return what the variables of a class of settings begin with; None for what is no class of settings."""
    found = getattr(settings, title, None)
    if isinstance(found, type) and issubclass(found, BaseSettings):
        return found.model_config.get("env_prefix", "")
    return None
