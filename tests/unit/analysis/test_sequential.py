"""The oracle values of the methods, computed independently."""

import math
from collections.abc import Callable
from itertools import product

import pytest

from weightshift.analysis.evidence import HARM_RATIOS
from weightshift.analysis.gates import HARD_ALTERNATIVES, HEALTH_FACTORS
from weightshift.analysis.samples import BadCounts
from weightshift.analysis.sequential import (
    MantelHaenszel,
    Wealth,
    absolute_evidence,
    comparison_evidence,
    mean_of_evidence,
)


def counts(requests: int, bad: int) -> BadCounts:
    return BadCounts((requests,), (bad,))


def harm(
    x_canary: int, x_stable: int, *, ratio: float = 1.1, k: float, margin: float = 0.0005, phi: float = 1.0
) -> float:
    return comparison_evidence(
        counts(300, x_canary),
        counts(5700, x_stable),
        null_ratio=ratio,
        margin=margin,
        alternative_ratios=[k],
        dispersion=phi,
    )[0]


def test_comparison_primitive() -> None:
    assert harm(6, 57, k=2.2) == pytest.approx(0.667723, abs=1e-6)
    assert harm(6, 57, k=2.2, phi=2) == pytest.approx(0.333862, abs=1e-6)
    assert harm(6, 57, k=2.2, margin=0) == pytest.approx(0.802157, abs=1e-6)


def test_drift_shaped_comparison() -> None:
    canary, stable = counts(300, 180), counts(5700, 2850)

    def evidence(k: float) -> float:
        return comparison_evidence(
            canary, stable, null_ratio=1.0, margin=0.05, alternative_ratios=[k], dispersion=1.0
        )[0]

    assert evidence(1.15) == pytest.approx(0.395357, abs=1e-6)
    assert evidence(1.3) == pytest.approx(-2.098751, abs=1e-6)


def binomial(count: int, trials: int, probability: float) -> float:
    return math.comb(trials, count) * probability**count * (1 - probability) ** (trials - count)


def poisson(count: int, trials: int, probability: float) -> float:
    mean = trials * probability
    return math.exp(-mean) * mean**count / math.factorial(count)


@pytest.mark.parametrize(
    ("law", "most", "expected"),
    [(binomial, (10, 20), 0.900664), (poisson, (40, 60), 1.0)],
    ids=["Bernoulli", "Poisson"],
)
def test_expected_evidence_at_the_boundary_is_at_most_one(
    law: Callable[[int, int, float], float], most: tuple[int, int], expected: float
) -> None:
    n_canary, n_stable, p_stable, p_canary = 10, 20, 0.2, 0.27
    total = 0.0
    for x_canary, x_stable in product(range(most[0] + 1), range(most[1] + 1)):
        (log_evidence,) = comparison_evidence(
            counts(n_canary, x_canary),
            counts(n_stable, x_stable),
            null_ratio=1.1,
            margin=0.05,
            alternative_ratios=[2.2],
            dispersion=1.0,
        )
        probability = law(x_canary, n_canary, p_canary) * law(x_stable, n_stable, p_stable)
        total += probability * math.exp(log_evidence)
    assert total == pytest.approx(expected, abs=1e-6)


def test_absolute_primitive() -> None:
    assert absolute_evidence(counts(1000, 30), null=0.01, alternative=0.03, dispersion=1.0) == pytest.approx(
        13.161763, abs=1e-6
    )
    assert absolute_evidence(counts(1000, 30), null=0.01, alternative=0.03, dispersion=2.5) == pytest.approx(
        5.264705, abs=1e-6
    )
    assert absolute_evidence(counts(50, 50), null=0.25, alternative=0.99, dispersion=3.0) == pytest.approx(
        22.937400, abs=1e-6
    )


@pytest.mark.parametrize(("dispersion", "smallest"), [(1.0, 7), (2.0, 13), (3.0, 19), (4.0, 26)])
def test_total_failure_in_the_first_interval(dispersion: float, smallest: int) -> None:
    threshold = math.log(6 / 0.005)

    def wealth(n: int) -> float:
        evidence = [
            absolute_evidence(counts(n, n), null=0.25, alternative=k, dispersion=dispersion)
            for k in HARD_ALTERNATIVES
        ]
        return Wealth.fresh(3).after(evidence, interval=0, cap=None).log

    assert next(n for n in range(1, 100) if wealth(n) >= threshold) == smallest
    if dispersion == 3.0:
        assert wealth(19) == pytest.approx(7.146493, abs=1e-6)
        assert wealth(18) == pytest.approx(6.701401, abs=1e-6)


def error_wealth(intervals: list[tuple[int, int]]) -> tuple[list[float], MantelHaenszel]:
    wealth, effect, path = Wealth.fresh(len(HARM_RATIOS)), MantelHaenszel(), []
    for number, (x_canary, x_stable) in enumerate(intervals):
        evidence = [harm(x_canary, x_stable, k=1.1 * ratio) for ratio in HARM_RATIOS]
        wealth = wealth.after(evidence, interval=number, cap=6.0)
        effect = effect.after(counts(300, x_canary), counts(5700, x_stable))
        path.append(wealth.log)
    return path, effect


def test_wealth_over_intervals() -> None:
    path, effect = error_wealth([(6, 57), (9, 60), (12, 51)])
    assert path == pytest.approx([-0.087685, 0.890253, 2.454497], abs=1e-6)
    assert effect.ratio == pytest.approx(3.053571, abs=1e-6)


def test_the_cap_makes_five_intervals_the_fastest_breach() -> None:
    path, _ = error_wealth([(300, 57)] * 5)
    assert path == pytest.approx([1.098612, 2.709045, 4.467278, 6.253367, 8.044183], abs=1e-6)
    assert [value >= math.log(6 / 0.005) for value in path] == [False, False, False, False, True]


@pytest.mark.parametrize(("ratio", "dispersion", "interval"), [(2.0, 1.0, 4), (1.5, 1.0, 13), (2.0, 3.0, 12)])
def test_health_needs_positive_evidence(ratio: float, dispersion: float, interval: int) -> None:
    total = [0.0] * len(HEALTH_FACTORS)
    number = 0
    while mean_of_evidence(total) < math.log(20):
        number += 1
        step = [harm(3, 57, ratio=ratio, k=ratio * factor, phi=dispersion) for factor in HEALTH_FACTORS]
        total = [a + b for a, b in zip(total, step, strict=True)]
    assert number == interval
    if (ratio, dispersion) == (2.0, 1.0):
        assert mean_of_evidence(total) == pytest.approx(3.003835, abs=1e-6)


def test_nothing_is_learned_from_an_arm_without_requests() -> None:
    assert comparison_evidence(
        counts(0, 0), counts(100, 3), null_ratio=1.1, margin=0.0, alternative_ratios=[2.2], dispersion=1.0
    ) == [0.0]
    assert MantelHaenszel().after(counts(0, 0), counts(0, 0)).ratio == 0.0
    assert MantelHaenszel().after(counts(10, 1), counts(10, 0)).ratio == math.inf
