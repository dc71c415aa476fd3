"""Two rules that are in wide use, on the same counts: a fixed threshold, and a repeated rank test."""

from typing import Any

import numpy as np
from _streams import Counts
from numpy.typing import NDArray

Array = NDArray[Any]

NEVER = -1
_MINUTE = 6
_FIXED_LIMIT = 0.015
_RANK_POINTS = 20
_RANK_DEVIATIONS = 2.326
"""Of the normal distribution: confidence 0.98, both sides."""

_ERROR_EFFECT, _LATENCY_EFFECT = 1.25, 1.10


def fixed_threshold(counts: Counts, start: int, end: int) -> Array:
    """Return the interval after which more than 1.5 % errors were seen in two minutes running, or -1."""
    errors, requests = (
        column[:, start:end, 0].sum(axis=2).reshape(column.shape[0], -1, _MINUTE).sum(axis=2)
        for column in (counts.errors, counts.requests)
    )
    over = errors > _FIXED_LIMIT * requests
    twice = np.zeros_like(over)
    twice[:, 1:] = over[:, 1:] & over[:, :-1]
    return np.where(twice.any(axis=1), (twice.argmax(axis=1) + 1) * _MINUTE, NEVER)


def rank_test(counts: Counts, stages: list[tuple[int, int]]) -> Array:
    """Return the interval after which a Mann-Whitney test on a stage's points alarmed, or -1.

    It is repeated every interval from 20 points on, for the error rate and for p99, each with an effect.
    """
    origin = stages[0][0]
    alarmed = np.full(counts.requests.shape[0], NEVER)
    for start, end in stages:
        window = np.s_[:, start:end]
        requests = np.maximum(counts.requests[window].sum(axis=3), 1)
        errors = counts.errors[window].sum(axis=3) / requests
        p99 = _quantile(counts.slower[window].sum(axis=3) / requests[..., None], np.array(counts.edges))
        fired = _fires(errors, _ERROR_EFFECT) | _fires(p99, _LATENCY_EFFECT)
        first = np.where(fired.any(axis=1), start - origin + fired.argmax(axis=1) + 1, NEVER)
        alarmed = np.where(alarmed == NEVER, first, alarmed)
    return alarmed


def _quantile(tails: Array, edges: Array, tail: float = 0.01) -> Array:
    """Return the latency beyond which `tail` of the requests lie, interpolated between edges."""
    over = (tails > tail).sum(axis=-1).clip(1, len(edges) - 1)
    before, after = (np.take_along_axis(tails, (over - i)[..., None], axis=-1)[..., 0] for i in (1, 0))
    part = np.clip((before - tail) / np.maximum(before - after, 1e-12), 0, 1)
    interpolated: Array = edges[over - 1] + part * (edges[over] - edges[over - 1])
    return interpolated


def _fires(points: Array, effect: float) -> Array:
    """Say for each release and interval whether the test on all points until then alarms."""
    canary, stable = points[..., 0], points[..., 1]
    wins = (canary[:, :, None] > stable[:, None, :]) + 0.5 * (canary[:, :, None] == stable[:, None, :])
    looks = np.arange(1, canary.shape[1] + 1)
    statistic = np.diagonal(wins.cumsum(axis=1).cumsum(axis=2), axis1=1, axis2=2)
    deviations = (statistic - looks**2 / 2) / np.sqrt(looks**2 * (2 * looks + 1) / 12)
    large = canary.cumsum(axis=1) >= effect * stable.cumsum(axis=1)
    fires: Array = (deviations > _RANK_DEVIATIONS) & large & (looks >= _RANK_POINTS)
    return fires
