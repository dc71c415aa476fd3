"""How much healthy instances vary, from their history and from the stage."""

import pytest

from weightshift.analysis.dispersion import (
    PRIOR_DISPERSION,
    Dispersion,
    DispersionHistory,
    Variation,
    block_dispersion,
    evidence_cap,
)
from weightshift.analysis.samples import BadCounts

WRITTEN = [BadCounts((100,) * 3, bad) for bad in ((1, 4, 1), (0, 0, 6), (2, 2, 2), (5, 0, 1))]
EQUAL = BadCounts((100, 100, 100), (3, 3, 3))
UNEQUAL = BadCounts((100, 100, 100), (90, 0, 0))


def after(intervals: list[BadCounts], instances: int = 3, **history: float) -> float:
    variation = Variation()
    for one in intervals:
        variation = variation.between_instances(one)
    return variation.dispersion(DispersionHistory(**history), load=1.0, instances=instances)


@pytest.mark.parametrize(("length", "dispersion"), [(1, 3.566392), (2, 3.567568)])
def test_dispersion_over_blocks(length: int, dispersion: float) -> None:
    assert block_dispersion(WRITTEN, length) == pytest.approx(dispersion, abs=1e-6)


def test_noise_that_persists_shows_in_longer_blocks() -> None:
    steady = [BadCounts((100, 100), (4, 0) if i // 12 % 2 else (0, 4)) for i in range(120)]
    history = DispersionHistory.from_intervals(steady)
    assert history.single == pytest.approx(4, rel=0.02)
    assert history.top > 40
    assert history.carry == 10
    assert history.requests == 100


@pytest.mark.parametrize(
    "intervals",
    [[], WRITTEN, [BadCounts((100,), (3,))] * 60, [BadCounts((100, 100), (0, 0))] * 60],
    ids=["none", "too few", "a single instance", "no bad event"],
)
def test_a_history_that_shows_nothing_gives_the_prior(intervals: list[BadCounts]) -> None:
    assert DispersionHistory.from_intervals(intervals) == DispersionHistory()
    assert DispersionHistory().top == PRIOR_DISPERSION


def test_without_history_equal_instances_bring_it_down_to_one() -> None:
    assert after([]) == PRIOR_DISPERSION
    assert after([EQUAL] * 50) == 1.0


def test_a_bursty_canary_buys_no_more_tolerance_than_healthy_instances_showed() -> None:
    assert after([UNEQUAL] * 50) == PRIOR_DISPERSION
    assert after([UNEQUAL] * 50, single=1.5, top=2.0) == 2.0


def test_noise_that_persists_counts_more_than_an_interval_shows() -> None:
    assert after([EQUAL] * 3, single=3.0, top=8.0) == 1.5
    assert after([EQUAL] * 3, single=3.0, top=8.0, carry=6.0) == 4.0


def test_the_excess_counts_double_below_three_instances() -> None:
    assert after([UNEQUAL] * 50, instances=2) == 9.0


def test_more_requests_per_instance_than_before_show_more_of_its_noise() -> None:
    history = DispersionHistory(single=2.0, top=2.0, requests=100)
    busy = BadCounts((200, 200, 200), (2, 2, 2))
    assert history.load(busy) == 2.0
    assert Dispersion(history=history).of_canary(busy) == 3.0


def test_a_single_instance_is_measured_against_its_share_at_the_earlier_ratio() -> None:
    stable = BadCounts((100, 100, 100), (3, 3, 3))
    steady = bursty = Dispersion()
    for number in range(50):
        steady = steady.after(BadCounts((100,), (9,)), stable)
        bursty = bursty.after(BadCounts((100,), (18 if number % 2 else 0,)), stable)
    assert steady.of_canary(BadCounts((100,), (0,))) == 1.0, "three times as many, but steadily so"
    assert bursty.of_canary(BadCounts((100,), (0,))) == 9.0


def test_with_few_instances_an_interval_says_less() -> None:
    assert evidence_cap(EQUAL, EQUAL) == 6.0
    assert evidence_cap(BadCounts((1, 1), (0, 0)), EQUAL) == 4.0
