import re
from pathlib import Path

import pytest

import weightshift.registry
from weightshift.errors import SchemaMismatch
from weightshift.registry.postgres.database import refuse_mismatch
from weightshift.registry.sql import QUERIES, migrations, parse_queries


def test_blocks_are_split_by_name_and_lose_their_comments() -> None:
    text = "-- a file\n\n-- name: one\nSELECT 1\n\n-- about two\n-- name: two\nSELECT 2\nFROM x\n"
    assert parse_queries(text) == {"one": "SELECT 1", "two": "SELECT 2\nFROM x"}


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        parse_queries("-- name: one\nSELECT 1\n-- name: one\nSELECT 2\n")


def test_every_query_is_used_and_every_used_query_exists() -> None:
    package = Path(weightshift.registry.__file__).parent
    source = "\n".join(path.read_text() for path in package.rglob("*.py"))
    used = set(re.findall(r'QUERIES\["(\w+)"\]', source)) | set(
        re.findall(r'_fetch\(\s*connection, "(\w+)"', source)
    )
    assert used == set(QUERIES)


def test_migrations_are_in_the_order_of_their_numbers() -> None:
    versions = [migration.version for migration in migrations()]
    assert versions == sorted(set(versions))
    assert versions[0] == 1


def test_a_database_is_compared_by_the_migrations_it_has() -> None:
    versions = {migration.version for migration in migrations()}
    refuse_mismatch(versions)
    with pytest.raises(SchemaMismatch, match="lacks migrations 1"):
        refuse_mismatch(versions - {1})
    with pytest.raises(SchemaMismatch, match="9999"):
        refuse_mismatch(versions | {9999})
