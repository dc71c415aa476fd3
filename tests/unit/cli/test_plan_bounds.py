"""Figures that a plan may not hold, and what a hand-typed rollback may."""

from typing import Any

import pytest
from pydantic import ValidationError

from weightshift.contracts.base import clean_text
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import RollbackRequest
from weightshift.contracts.traffic import TrafficSplit


@pytest.mark.parametrize(
    "fields",
    [
        {"load_deadline": -5},
        {"load_deadline": 0},
        {"interval": 0},
        {"interval": "999999999d"},
        {"window": -300},
        {"window": "99999999999999999999d"},
        {"max_window": 86_399_999_999_999},
        {"retain": -5},
        {"stages": [True, 100]},
        {"stages": [{"weight": "5"}, 100]},
    ],
    ids=str,
)
def test_a_figure_out_of_range_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        Plan.model_validate(fields)
    (field,) = fields
    assert {problem["loc"][0] for problem in refused.value.errors()} == {field}


def test_a_weight_is_a_number_and_nothing_that_counts_as_one() -> None:
    with pytest.raises(ValidationError):
        TrafficSplit.model_validate({"stable": True, "canary": 99})


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        ([], "rollback requested"),
        ([b'{"reason": "smells"}', b'{"reason": "other"}'], "smells"),
        ([b'"smells"'], "smells"),
        ([b"null"], "rollback requested"),
        ([b"\xff\xfe"], "rollback requested"),
        ([b"[" * 100_000], "rollback requested"),
        ([b'{"reason": "a\\u0000b\\ud800c"}'], "abc"),
        ([b'{"reason": 5}'], "5"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_rollback_is_read_from_whatever_was_sent(payloads: list[bytes], reason: str) -> None:
    assert RollbackRequest.from_payloads(payloads).reason == reason


def test_text_is_cleaned_and_cut() -> None:
    assert clean_text("a\x00b\x1b[31m\ud800 c") == "ab[31m c"
    assert len(clean_text("x" * 5_000)) == 1_000
