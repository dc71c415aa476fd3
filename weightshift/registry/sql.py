"""The named statements of `queries.sql` and the numbered migrations, read once from the package."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_(\w+)\.sql$")
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One step of the schema; `version` orders the steps and names each for ever."""

    version: int
    name: str
    statements: str


def parse_queries(text: str) -> dict[str, str]:
    """Split text into its named blocks. Raises `ValueError` for a name that occurs twice."""
    parts = _NAME.split(text)
    names, blocks = parts[1::2], parts[2::2]
    if len(set(names)) != len(names):
        raise ValueError("a query name occurs twice in queries.sql")
    return {name: _COMMENT.sub("", block).strip() for name, block in zip(names, blocks, strict=True)}


@cache
def migrations() -> tuple[Migration, ...]:
    """Return every migration of this build in order. Raises `ValueError` for a number used twice."""
    found = []
    for entry in files("weightshift.registry").joinpath("migrations").iterdir():
        if match := _MIGRATION.match(entry.name):
            found.append(Migration(version=int(match[1]), name=match[2], statements=entry.read_text("utf-8")))
    found.sort(key=lambda migration: migration.version)
    if len({migration.version for migration in found}) != len(found):
        raise ValueError("two migrations have the same number")
    return tuple(found)


QUERIES = parse_queries(files("weightshift.registry").joinpath("queries.sql").read_text("utf-8"))
"""Every statement by its name."""
