import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.architectures import Ranker, RankerResources
from runtime.installed_architectures import find_architecture
from weightshift.errors import InvalidInput

RANKER = Ranker()
RESOURCES = RankerResources(hidden=(8,), mean=torch.arange(88.0), std=torch.full((88,), 2.0))


def body(**changes: Any) -> dict[str, Any]:
    full = {"context": [1.0] * 8, "candidates": [[3] * 80, [5.0] * 80], "top": 1, **changes}
    return {name: value for name, value in full.items() if value is not None}


def test_it_is_found_by_name() -> None:
    assert isinstance(find_architecture("ranker"), Ranker)


def test_candidates_come_before_the_context_and_are_normalised() -> None:
    rows = RANKER.preprocess(body(), RESOURCES)
    raw = rows * RESOURCES.std + RESOURCES.mean
    assert rows.dtype == torch.float32
    assert raw.tolist() == [[3.0] * 80 + [1.0] * 8, [5.0] * 80 + [1.0] * 8]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ([], "object"),
        (None, "object"),
        (body(context=None), "context is missing"),
        (body(candidates=None), "candidates is missing"),
        (body(user="x"), "'user'"),
        (body(context=[1.0] * 7), "context"),
        (body(context="12345678"), "context"),
        (body(context=[True] * 8), "context"),
        (body(context=["1"] * 8), "context"),
        (body(context=[1e31] + [0] * 7), "context"),
        (body(context=[10**400] + [0] * 7), "context"),
        (body(context=[float("nan")] * 8), "context"),
        (body(candidates=[]), "candidates"),
        (body(candidates=[[0.0] * 80] * 65), "candidates"),
        (body(candidates=[[0.0] * 80, [0.0] * 79]), r"candidates\[1\]"),
        (body(candidates=[[None] * 80]), r"candidates\[0\]"),
        (body(candidates=[[[0.0]] * 80]), r"candidates\[0\]"),
        (body(candidates=[[float("-inf")] * 80]), "candidates"),
        (body(candidates={"a": 1}), "candidates"),
        (body(top=0), "top"),
        (body(top=65), "top"),
        (body(top=1.0), "top"),
        (body(top=True), "top"),
        (body(top="3"), "top"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(bad: object, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        RANKER.preprocess(bad, RESOURCES)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_ROW = st.lists(_JSON, min_size=80, max_size=80) | st.lists(
    st.floats() | st.integers(), min_size=80, max_size=80
)


@given(
    st.fixed_dictionaries(
        {"context": st.lists(_JSON, min_size=8, max_size=8), "candidates": st.lists(_ROW, max_size=2)},
        optional={"top": _JSON},
    )
    | _JSON
)
def test_any_json_is_either_finite_rows_or_a_bad_request(request_body: object) -> None:
    try:
        rows = RANKER.preprocess(request_body, RESOURCES)
    except InvalidInput:
        return
    assert torch.isfinite(rows).all()


def test_items_come_by_falling_score_then_by_index() -> None:
    out = torch.tensor([0.5, 2.0, 0.5, -1.0, 2.0])
    answer = RANKER.postprocess(out, body(top=4), RESOURCES)
    assert answer == {
        "items": [
            {"index": 1, "score": 2.0},
            {"index": 4, "score": 2.0},
            {"index": 0, "score": 0.5},
            {"index": 2, "score": 0.5},
        ]
    }
    RANKER.validate(out, answer)


def test_top_defaults_to_three_and_scores_have_six_decimals() -> None:
    answer: Any = RANKER.postprocess(torch.tensor([1 / 3] * 5), body(top=None), RESOURCES)
    assert answer["items"] == [{"index": index, "score": 0.333333} for index in range(3)]


def test_its_samples_are_valid_json_requests() -> None:
    for sample in RANKER.samples(RESOURCES):
        assert len(RANKER.preprocess(json.loads(json.dumps(sample.body)), RESOURCES)) in {1, 64}
