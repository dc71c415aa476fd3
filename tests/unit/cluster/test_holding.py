from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes_api.patches import json_patch
from weightshift.cluster.holding import ANNOTATION, put_back, raise_to, was_before
from weightshift.contracts.identity import Fence
from weightshift.errors import StaleFence

numbers = st.integers(0, 50)


def fence(sequence: int) -> Fence:
    return Fence(epoch=1, sequence=sequence)


def deployment(replicas: int | None) -> dict[str, Any]:
    return {"metadata": {"name": "ranker"}, "spec": {} if replicas is None else {"replicas": replicas}}


def held(stored: dict[str, Any], wanted: int, sequence: int) -> dict[str, Any]:
    changed: dict[str, Any] = json_patch(stored, raise_to(stored, "replicas", wanted, fence(sequence)))
    return changed


def let_go(stored: dict[str, Any], sequence: int) -> dict[str, Any]:
    changed: dict[str, Any] = json_patch(stored, put_back(stored, "replicas", fence(sequence)))
    return changed


@given(before=numbers, wanted=st.lists(numbers, min_size=1, max_size=4))
def test_what_was_raised_is_put_back_however_often_it_was_raised(before: int, wanted: list[int]) -> None:
    stored = deployment(before)
    for sequence, number in enumerate(wanted):
        stored = held(stored, number, sequence)
        assert held(stored, number, sequence) == stored, "a repeat changes nothing"
    assert stored["spec"]["replicas"] == max(before, *wanted)
    stored = let_go(stored, 9)
    assert stored["spec"]["replicas"] == before
    assert let_go(stored, 9) == stored


def test_a_number_that_was_left_out_is_one() -> None:
    stored = held(deployment(None), 3, 1)
    assert (stored["spec"]["replicas"], was_before(stored)) == (3, 1)


def test_what_somebody_else_sets_meanwhile_stays() -> None:
    stored = held(deployment(1), 3, 1)
    stored["spec"]["replicas"] = 7
    assert let_go(stored, 2)["spec"]["replicas"] == 7


def test_a_late_command_changes_nothing() -> None:
    stored = let_go(held(deployment(1), 3, 5), 6)
    with pytest.raises(StaleFence, match=r"1\.6"):
        held(stored, 9, 5)
    with pytest.raises(StaleFence, match=r"1\.6"):
        let_go(stored, 5)


def test_a_spoilt_annotation_puts_nothing_back() -> None:
    stored = held(deployment(1), 3, 1)
    stored["metadata"]["annotations"][ANNOTATION] = "{}"
    assert let_go(stored, 2) == stored
