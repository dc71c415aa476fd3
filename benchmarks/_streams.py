"""Five kinds of simulated traffic to judge a release on: counts per instance and interval.

600 requests a second, 1 % errors, lognormal latencies (log standard deviation 0.5), scores uniform on
[0, 1], four instances in each arm; an interval is 10 s. Arrays have the axes release, interval, arm (canary,
stable), instance, and where there is one, edge.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightshift.analysis.samples import ArmCounts, InstanceCounts, Interval

Array = NDArray[Any]

REQUESTS = 6_000
ERRORS = 0.01
LATENCY_DEVIATION = 0.5
TAIL = 0.02
"""The share of requests that a defect of the tail alone slows."""
INSTANCES = 4
MIRRORED = 0.05
SCORE_EDGES = tuple(step / 20 for step in range(1, 20))
_BETWEEN_OUTAGES, _BETWEEN_INSTANCE_BURSTS = 180, 60


@dataclass(frozen=True)
class Stream:
    """What a kind of traffic adds to independent requests.

    `shared`: the error rate of both arms wanders together, with outages. `cluster`: mean number of errors
    that come at once. `instance_noise`: standard deviations of each instance's own log error rate and log
    latency. `instance_bursts`: 30 s of five times the errors on one instance, every 10 minutes.
    """

    shared: bool = False
    cluster: float = 1.0
    instance_noise: tuple[float, float] = (0.0, 0.0)
    instance_bursts: bool = False


STREAMS = {
    "iid": Stream(),
    "common": Stream(shared=True),
    "batch": Stream(shared=True, cluster=3.0),
    "pods": Stream(shared=True, instance_noise=(0.5, 0.06)),
    "bursts": Stream(shared=True, cluster=2.0, instance_bursts=True),
}


@dataclass(frozen=True)
class Defect:
    """How the canary differs from stable, from interval `start` on: factors, and a shift of its scores.

    `tail` is a factor on the latency of the slowest 2 % alone. `deviation` is the log standard deviation of
    the latencies of both arms.
    """

    errors: float = 1.0
    latency: float = 1.0
    tail: float = 1.0
    scores: float = 0.0
    start: int = 0
    deviation: float = LATENCY_DEVIATION

    @property
    def edges(self) -> tuple[float, ...]:
        """Latency edges in seconds, from the median on, as far apart as the runtime's buckets."""
        return tuple(0.02 * 1.1**step for step in range(22 if self.deviation == LATENCY_DEVIATION else 38))


@dataclass(frozen=True)
class Counts:
    """What was counted of many releases at once."""

    requests: Array
    errors: Array
    slower: Array
    above: Array
    edges: tuple[float, ...]

    def intervals(self, release: int, start: int, end: int) -> list[Interval]:
        """Return one release's intervals as the judge takes them."""
        window = np.s_[release, start:end]
        columns = (self.requests, self.errors, self.slower, self.above)
        lists = [column[window].tolist() for column in columns]
        return [
            Interval(_arm(rows, 0), _arm(rows, 1), self.edges, SCORE_EDGES)
            for rows in zip(*lists, strict=True)
        ]


def _arm(rows: Sequence[Any], arm: int) -> ArmCounts:
    requests, errors, slower, above = (row[arm] for row in rows)
    return ArmCounts(
        {
            str(i): InstanceCounts(
                requests[i], errors[i], tuple(slower[i]), scored=requests[i], scores_above=tuple(above[i])
            )
            for i in range(len(requests))
        },
        fresh=True,
    )


def simulate(
    stream: Stream,
    weights: Sequence[int],
    releases: int,
    source: np.random.Generator,
    defect: Defect,
) -> Counts:
    """Simulate releases whose canary has these weights in percent, interval by interval.

    At 100 stable gets a mirrored share, at 0 everything; the defect starts with the first canary request.
    """
    share = np.array([[w / 100, MIRRORED if w == 100 else 1 - w / 100] for w in weights])
    shape = (releases, len(weights), 2, INSTANCES)
    requests = source.poisson(np.broadcast_to((share * REQUESTS / INSTANCES)[None, :, :, None], shape))
    rate, latency = _rates(stream, shape, source)
    changed = np.zeros(shape)
    changed[:, defect.start :, 0] = 1.0
    rate = np.minimum(ERRORS * rate * defect.errors**changed, 0.9)
    latency = latency + math.log(defect.latency) * changed
    limits = np.log(np.array(defect.edges) / defect.edges[0])
    tails = _above((limits - latency[..., None]) / defect.deviation)
    if defect.tail != 1.0:
        slowed = (limits - latency[..., None] - math.log(defect.tail) * changed[..., None]) / defect.deviation
        tails = np.maximum(tails, np.minimum(TAIL, _above(slowed)))
    scores = np.array([NormalDist().inv_cdf(edge) for edge in SCORE_EDGES])
    return Counts(
        requests=requests,
        errors=_errors(requests, rate, stream.cluster, source),
        slower=_counted_above(requests, tails, source),
        above=_counted_above(requests, _above(scores - defect.scores * changed[..., None]), source),
        edges=defect.edges,
    )


def _rates(stream: Stream, shape: tuple[int, ...], source: np.random.Generator) -> tuple[Array, Array]:
    """Return each instance's factor on the error rate, and its shift of the log latency."""
    rate, latency = np.zeros(shape), np.zeros(shape)
    releases, intervals = shape[:2]
    if stream.shared:
        rate += _wandering((releases, intervals, 1, 1), 0.6, 0.95, source)
        rate += math.log(10) * _episodes((releases, intervals, 1, 1), _BETWEEN_OUTAGES, source)
        latency += _wandering((releases, intervals, 1, 1), 0.15, 0.95, source, mean_one=False)
    own_rate, own_latency = stream.instance_noise
    if own_rate:
        rate += _wandering(shape, own_rate, 0.7, source)
        latency += _wandering(shape, own_latency, 0.7, source, mean_one=False)
    if stream.instance_bursts:
        bursts = _episodes(shape, _BETWEEN_INSTANCE_BURSTS, source)
        rate += math.log(5) * bursts
        latency += math.log(1.28) * bursts
    return np.exp(rate), latency


def _wandering(
    shape: tuple[int, ...],
    deviation: float,
    correlation: float,
    source: np.random.Generator,
    *,
    mean_one: bool = True,
) -> Array:
    """Return a first-order autoregression along the intervals; exp of it has mean 1 if asked for."""
    steps = source.normal(0, deviation, shape)
    fresh = math.sqrt(1 - correlation**2)
    for interval in range(1, shape[1]):
        steps[:, interval] = correlation * steps[:, interval - 1] + fresh * steps[:, interval]
    return steps - deviation**2 / 2 if mean_one else steps


def _episodes(shape: tuple[int, ...], every: int, source: np.random.Generator) -> Array:
    """Return 1 in episodes of three intervals (30 s) that begin on average every `every` intervals."""
    begins = source.random(shape) < 1 / every
    active = begins.copy()
    for later in (1, 2):
        active[:, later:] |= begins[:, :-later]
    return active.astype(float)


def _errors(requests: Array, rate: Array, cluster: float, source: np.random.Generator) -> Array:
    if cluster == 1.0:
        return source.binomial(requests, rate)
    clusters = source.poisson(requests * rate / cluster)
    # A sum of geometric sizes: the successes, and the failures before the last of them.
    further = source.negative_binomial(np.maximum(clusters, 1), 1 / cluster)
    bounded: Array = np.minimum(np.where(clusters > 0, clusters + further, 0), requests)
    return bounded


def _above(standardised: Array) -> Array:
    """Return the upper tail of the normal distribution, from a table of it."""
    grid = np.linspace(-8, 8, 3_201)
    table = np.array([NormalDist().cdf(-x) for x in grid])
    tails: Array = np.interp(standardised, grid, table)
    return tails


def _counted_above(requests: Array, tails: Array, source: np.random.Generator) -> Array:
    """Draw how many of the requests lie above each rising edge, with these tail probabilities."""
    counted = np.empty((*requests.shape, tails.shape[-1]), dtype=np.int64)
    remaining, before = requests, np.ones(requests.shape)
    for edge in range(tails.shape[-1]):
        probability = np.broadcast_to(tails[..., edge], requests.shape)
        remaining = source.binomial(remaining, np.minimum(probability / before, 1.0))
        counted[..., edge] = remaining
        before = np.maximum(probability, 1e-300)
    return counted
