"""What was judged, kept for people: a bounded number of points however long a stage lasts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightshift.analysis.evidence import Evidence
from weightshift.analysis.samples import ArmCounts, Interval
from weightshift.contracts.curve import ArmCurve, StageCurve

POINTS = 60
"""As many as a picture can show and a row of evidence can hold."""

_QUANTILE = 0.99
_DIGITS = 4


@dataclass(frozen=True)
class _Arm:
    requests: int
    errors: int
    p99: float | None

    @classmethod
    def of(cls, counts: ArmCounts, edges: Sequence[float]) -> "_Arm":
        p99 = latency_quantile(edges, counts.requests, counts.totals_slower, _QUANTILE)
        return cls(counts.requests, counts.errors().total_bad, p99)

    def plus(self, other: "_Arm") -> "_Arm":
        """Pool two stretches. Their histograms are gone by now, so the latency is a mean by requests."""
        return _Arm(self.requests + other.requests, self.errors + other.errors, _pooled(self, other))


def _pooled(first: _Arm, second: _Arm) -> float | None:
    if first.p99 is None or second.p99 is None:
        return second.p99 if first.p99 is None else first.p99
    total = first.p99 * first.requests + second.p99 * second.requests
    return float(f"{total / (first.requests + second.requests):.4g}")


@dataclass(frozen=True)
class _Point:
    """The intervals up to `until` that are pooled here; the evidence is that after the last of them."""

    until: float
    intervals: int
    canary: _Arm
    stable: _Arm
    log_harm: Mapping[str, float]
    log_health: Mapping[str, float]

    def plus(self, later: "_Point") -> "_Point":
        return _Point(
            until=later.until,
            intervals=self.intervals + later.intervals,
            canary=self.canary.plus(later.canary),
            stable=self.stable.plus(later.stable),
            log_harm=later.log_harm,
            log_health=later.log_health,
        )


@dataclass(frozen=True)
class Curve:
    """The points so far; each pools `stride` intervals, the last one perhaps fewer."""

    points: tuple[_Point, ...] = ()
    stride: int = 1

    def after(self, interval: Interval, evidence: Mapping[str, Evidence], *, until: float) -> "Curve":
        """Add a judged interval that ended at `until` (unix seconds), and the evidence after it."""
        point = _Point(
            until=until,
            intervals=1,
            canary=_Arm.of(interval.canary, interval.edges),
            stable=_Arm.of(interval.stable, interval.edges),
            log_harm={name: round(one.harm.log, _DIGITS) for name, one in evidence.items()},
            log_health={name: round(one.log_health, _DIGITS) for name, one in evidence.items() if one.health},
        )
        points, stride = _joined(self.points, point, self.stride), self.stride
        if len(points) > POINTS:
            points, stride = _halved(points), 2 * stride
        return Curve(points=points, stride=stride)

    def document(self) -> StageCurve:
        """Return the points as they are recorded."""
        points = self.points
        return StageCurve(
            until=tuple(round(point.until, 1) for point in points),
            canary=_arm_curve([point.canary for point in points]),
            stable=_arm_curve([point.stable for point in points]),
            log_harm=_columns([point.log_harm for point in points]),
            log_health=_columns([point.log_health for point in points]),
        )


def _arm_curve(arms: Sequence[_Arm]) -> ArmCurve:
    return ArmCurve(
        requests=tuple(arm.requests for arm in arms),
        errors=tuple(arm.errors for arm in arms),
        p99=tuple(arm.p99 for arm in arms),
    )


def latency_quantile(
    edges: Sequence[float], requests: int, slower: Sequence[int], quantile: float
) -> float | None:
    """Return a latency in seconds, straight between the two edges around it; None without requests.

    `slower[i]` of the `requests` took longer than `edges[i]`. Beyond the last edge nothing is known, so
    that edge is returned.
    """
    if requests == 0 or len(slower) != len(edges) or not edges:
        return None
    wanted = (1 - quantile) * requests
    lower, above_lower = 0.0, requests
    for edge, above in zip(edges, slower, strict=True):
        if above <= wanted:
            share = (above_lower - wanted) / (above_lower - above) if above_lower > above else 1.0
            return float(f"{lower + (edge - lower) * share:.4g}")
        lower, above_lower = edge, above
    return edges[-1]


def _joined(points: tuple[_Point, ...], point: _Point, stride: int) -> tuple[_Point, ...]:
    if points and points[-1].intervals < stride:
        return (*points[:-1], points[-1].plus(point))
    return (*points, point)


def _halved(points: tuple[_Point, ...]) -> tuple[_Point, ...]:
    pairs = [points[index : index + 2] for index in range(0, len(points), 2)]
    return tuple(pair[0].plus(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs)


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """Turn rows with the same names into one column for each name."""
    return {name: tuple(row[name] for row in rows) for name in (rows[-1] if rows else {})}
