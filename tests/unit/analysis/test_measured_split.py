import random

import pytest

from weightshift.analysis.measured_split import split_problem
from weightshift.contracts.traffic import TrafficSplit


@pytest.mark.parametrize(
    ("split", "canary", "stable", "follows"),
    [
        (TrafficSplit.with_canary(25), 250, 750, True),
        (TrafficSplit.with_canary(25), 280, 720, True),
        (TrafficSplit.with_canary(25), 0, 1_000, False),
        (TrafficSplit.with_canary(25), 5_000, 5_000, False),
        (TrafficSplit.with_canary(25), 0, 99, True),
        (TrafficSplit.with_canary(100), 1_000, 0, True),
        (TrafficSplit.with_canary(100), 985, 15, True),
        (TrafficSplit.with_canary(100), 900, 100, False),
        (TrafficSplit.with_canary(0), 0, 1_000, True),
        (TrafficSplit.with_canary(0), 100, 900, False),
        (TrafficSplit.with_canary(100, mirrored=5), 1_000, 50, True),
        (TrafficSplit.with_canary(100, mirrored=50), 1_000, 0, False),
    ],
)
def test_a_share_far_from_the_split_is_told(
    split: TrafficSplit, canary: int, stable: int, follows: bool
) -> None:
    problem = split_problem(split, canary=canary, stable=stable, tolerance=2.0)
    assert (problem is None) is follows


def test_the_figures_are_told() -> None:
    problem = split_problem(TrafficSplit.with_canary(25), canary=500, stable=500, tolerance=2.0)
    assert "50.0% of 1000 requests on the canary, 25.0% were set" in (problem or "")


def test_chance_alone_is_never_told() -> None:
    draws = random.Random(7)  # noqa: S311
    for percent in (1, 5, 25, 50, 99):
        for requests in (100, 1_000, 10_000):
            canary = sum(draws.random() * 100 < percent for _ in range(requests))
            split = TrafficSplit.with_canary(percent)
            assert split_problem(split, canary=canary, stable=requests - canary, tolerance=0.0) is None
