"""How many requests a verdict takes, against simulated releases at one request a second."""

import math

import pytest

from weightshift.analysis.sizing import (
    DOUBLED,
    ObservedTraffic,
    PoolCapacity,
    overload_problems,
    requests_to_breach,
    requests_to_pass,
    sample_size_problems,
    slow_gates,
)
from weightshift.contracts.plan import Plan

HOUR = 3_600


@pytest.mark.parametrize(("weight", "hours"), [(5, 12.5), (25, 3.5), (50, 3.1)])
def test_time_to_pass_is_near_the_simulated_one(weight: int, hours: float) -> None:
    share = weight / 100
    needed = requests_to_pass(share=share, bad_fraction=0.01, ratio=2.0, margin=0.0005)
    assert needed / share / HOUR == pytest.approx(hours, rel=0.25)


@pytest.mark.parametrize(
    ("weight", "harm", "hours"),
    [(5, 5.0, 3.2), (25, 2.0, 10.3), (25, 5.0, 0.9), (50, 2.0, 8.3), (50, 5.0, 44 / 60)],
)
def test_time_to_a_breach_is_near_the_simulated_one(weight: int, harm: float, hours: float) -> None:
    share = weight / 100
    needed = requests_to_breach(share=share, bad_fraction=0.01, harm=harm, ratio=1.1, margin=0.0005)
    assert needed / share / HOUR == pytest.approx(hours, rel=0.25)


def test_what_a_gate_forgives_is_never_a_breach() -> None:
    assert requests_to_breach(share=0.5, bad_fraction=0.01, harm=1.1, ratio=1.1, margin=0.0) == math.inf


def test_dispersion_multiplies_what_is_needed() -> None:
    once, five = (
        requests_to_breach(
            share=0.05, bad_fraction=0.01, harm=DOUBLED, ratio=1.1, margin=0.0005, dispersion=phi
        )
        for phi in (1.0, 5.0)
    )
    assert five == pytest.approx(5 * once)


@pytest.mark.parametrize("bad_fraction", [1e-5, 1e-4, 0.01, 0.2])
@pytest.mark.parametrize("ratio", [1.1, 1.5, 2.0])
def test_a_comparison_asks_for_more_requests_than_any_sensible_floor(
    bad_fraction: float, ratio: float
) -> None:
    """Three bad events in what is still acceptable: below that nothing could be told apart."""
    floor = 3 / (ratio * bad_fraction + 0.0005)
    for share in (0.0, 0.05):
        assert (
            requests_to_pass(share=share, bad_fraction=bad_fraction, ratio=ratio, margin=0.0005) > 2.5 * floor
        )


def test_a_busy_service_has_no_problem() -> None:
    traffic = ObservedTraffic(600, 0.01)
    assert (sample_size_problems(Plan(), traffic), slow_gates(Plan(), traffic)) == ([], [])


def test_every_stage_that_cannot_be_reached_is_named() -> None:
    traffic = ObservedTraffic(1, 0.01)
    (problem,) = sample_size_problems(Plan(), traffic)
    assert (
        "stage 1: about 180 canary requests arrive within max_window, fewer than min_samples 200" in problem
    )
    slow = slow_gates(Plan(), traffic)
    assert [remark.partition(":")[0] for remark in slow] == [f"stage {number}" for number in (1, 2, 3, 4)]
    assert "gate error_rate ratio 1.1 needs about" in slow[0]


def test_a_service_that_never_failed_is_not_asked_for_the_impossible() -> None:
    assert slow_gates(Plan(), ObservedTraffic(600, 0.0)) == []


def test_a_stage_that_is_not_judged_needs_nothing() -> None:
    at_once = Plan.model_validate({"window": 0, "max_window": 0})
    assert sample_size_problems(at_once, ObservedTraffic(0, 0.01)) == []


BUSY = ObservedTraffic(1_000, 0.0, in_flight=16)


@pytest.mark.parametrize(
    ("traffic", "capacity", "stages"),
    [
        (BUSY, PoolCapacity(stable=8, canary=8), []),
        (BUSY, PoolCapacity(stable=8, canary=4), []),
        (BUSY, PoolCapacity(stable=8, canary=2), ["stage 4"]),
        (BUSY, PoolCapacity(stable=8, canary=1), ["stage 3", "stage 4"]),
        (ObservedTraffic(1_000, 0.0, in_flight=1.9), PoolCapacity(stable=8, canary=2), []),
        (ObservedTraffic(0, 0.0), PoolCapacity(stable=8, canary=1), []),
    ],
    ids=["equal", "twice the load", "four times", "eight times", "with time to spare", "idle"],
)
def test_a_weight_beyond_the_canarys_capacity_is_named(
    traffic: ObservedTraffic, capacity: PoolCapacity, stages: list[str]
) -> None:
    problems = overload_problems(Plan(), traffic, capacity, highest_load=2.0)
    assert [problem.partition(":")[0] for problem in problems] == stages


def test_an_overload_says_what_could_be_carried() -> None:
    (problem,) = overload_problems(Plan(), BUSY, PoolCapacity(stable=8, canary=2), highest_load=2.0)
    assert "at 100 % a canary instance carries 4.0 times" in problem
    assert "at most 50 %" in problem
