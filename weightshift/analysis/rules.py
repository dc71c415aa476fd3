"""Which rule judges a gate."""

from weightshift.analysis.drift_gate import ScoreDrift
from weightshift.analysis.evidence import GateRule
from weightshift.analysis.gates import Absolute, BadEventRatio
from weightshift.analysis.latency_edges import edges_around
from weightshift.analysis.latency_gate import LatencyRatio
from weightshift.analysis.samples import Interval
from weightshift.analysis.watermark_gate import MemoryWatermark
from weightshift.contracts.plan import Gate, Metric

_SPARSE = 4
"""Of edges that no gate is near, one in so many is read."""


def rule_of(gate: Gate, weight: int, *, control: int = 0) -> GateRule:
    """Return the rule for a gate at a stage's canary weight and, at 100 %, control share, both in percent."""
    if gate.metric is Metric.SCORE_DRIFT:
        return ScoreDrift(gate)
    if gate.metric is Metric.DEVICE_MEMORY:
        return MemoryWatermark(gate)
    if gate.maximum is not None:
        return Absolute(gate)
    if gate.metric is Metric.LATENCY:
        return LatencyRatio(gate, control=control)
    # Where stable has the smaller share, it is what decides how exactly can be compared.
    return BadEventRatio(gate, control or weight)


def judged_edges(gates: tuple[Gate, ...], calibration: Interval) -> tuple[float, ...] | None:
    """Return the latency edges in seconds that are read while a stage is judged; None for all of them.

    Densely around what the gates compare, with room for stable to change, and sparsely elsewhere, which is
    enough to show a latency that nobody expected. A service of which little is known is read in full.
    """
    dense: set[float] = set()
    for gate in gates:
        if gate.metric is not Metric.LATENCY:
            continue
        if gate.maximum is not None:
            dense.update([edge for edge in calibration.edges if edge >= gate.maximum][:1])
            continue
        around = edges_around(calibration, quantile=gate.quantile, ratio=gate.ratio or 1.0)
        if around is None:
            return None
        dense.update(around)
    return tuple(sorted(dense.union(calibration.edges[::_SPARSE], calibration.edges[-1:])))


def history_edges(gates: tuple[Gate, ...], calibration: Interval) -> tuple[float, ...]:
    """Return the latency edges in seconds whose counts over stable's last hour the gates want."""
    wanted = set()
    for gate in gates:
        if gate.metric is not Metric.LATENCY:
            continue
        if gate.maximum is None:
            wanted.add(LatencyRatio(gate).middle_edge(calibration))
        else:
            wanted.add(next((edge for edge in calibration.edges if edge >= gate.maximum), None))
    return tuple(sorted(edge for edge in wanted if edge is not None))
