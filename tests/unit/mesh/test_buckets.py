import re

import pytest

from weightshift.mesh.buckets import BUCKETS, bucket_pattern


def members(first: int, last: int) -> set[int]:
    pattern = re.compile(bucket_pattern(first, last))
    return {number for number in range(2 * BUCKETS) if pattern.search(str(number))}


@pytest.mark.parametrize("first", range(BUCKETS))
def test_a_pattern_matches_its_buckets_and_no_other_number(first: int) -> None:
    for last in range(first, BUCKETS):
        assert members(first, last) == set(range(first, last + 1))


def test_buckets_of_a_growing_canary_are_nested_and_complete() -> None:
    before: set[int] = set()
    for percent in range(1, 100):
        canary, stable = members(0, percent - 1), members(percent, BUCKETS - 1)
        assert before < canary
        assert canary | stable == set(range(BUCKETS))
        assert not canary & stable
        before = canary


@pytest.mark.parametrize("text", ["", "07", "-1", "5 ", "x", "1e1", "55\n5"])
def test_what_is_not_a_bucket_matches_nothing(text: str) -> None:
    assert re.compile(bucket_pattern(0, 99)).fullmatch(text) is None


@pytest.mark.parametrize(("first", "last"), [(5, 4), (-1, 3), (0, 100)])
def test_impossible_ranges_are_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="no buckets"):
        bucket_pattern(first, last)
