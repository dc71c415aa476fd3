import pytest
from pydantic import ValidationError

from weightshift.contracts.traffic import MeshState, TrafficSplit


def test_a_plain_split_reads_as_it_always_did() -> None:
    assert TrafficSplit.with_canary(0).model_dump() == {"stable": 100, "canary": 0}
    assert MeshState(split=TrafficSplit.with_canary(5)).model_dump(mode="json")["split"] == {
        "stable": 95,
        "canary": 5,
    }


def test_what_is_said_survives_the_wire() -> None:
    for split in (TrafficSplit.with_canary(100, mirrored=5), TrafficSplit.with_canary(25, sticky=True)):
        assert TrafficSplit.model_validate_json(split.model_dump_json()) == split


@pytest.mark.parametrize("canary", [0, 5, 99])
def test_requests_are_mirrored_only_where_the_canary_carries_everything(canary: int) -> None:
    with pytest.raises(ValidationError, match="mirrored"):
        TrafficSplit.with_canary(canary, mirrored=5)


@pytest.mark.parametrize(("stable", "canary"), [(101, -1), (-1, 101), (50, 51), (0, 0)])
def test_weights_outside_of_a_hundred_are_refused(stable: int, canary: int) -> None:
    with pytest.raises(ValidationError):
        TrafficSplit(stable=stable, canary=canary)
