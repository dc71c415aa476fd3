"""What each metric counts as bad."""

from collections.abc import Sequence

from weightshift.analysis.dispersion import DispersionHistory
from weightshift.analysis.samples import ArmCounts, BadCounts, Interval
from weightshift.contracts.plan import Gate, Metric


def bad_events(gate: Gate, arm: ArmCounts, edges: tuple[float, ...]) -> BadCounts | None:
    """Count an arm's bad events by the gate's metric; None where nothing can be counted."""
    if gate.metric is Metric.ERROR_RATE:
        return arm.errors()
    if gate.metric is Metric.REJECT_RATE:
        return arm.rejections()
    if gate.metric is Metric.BUSINESS:
        return arm.business.get(gate.name)
    limit = gate.maximum or 0.0
    reaching = next((i for i, edge in enumerate(edges) if edge >= limit), None)
    return None if reaching is None else arm.slower_than(reaching)


def uncountable(gate: Gate, interval: Interval) -> str:
    """Return why `bad_events` found nothing to count."""
    if gate.metric is Metric.BUSINESS:
        return interval.refused.get(gate.name, "no series carries the release's revision")
    longest = f"{interval.edges[-1]:g} s is the longest" if interval.edges else "there are none"
    return f"no latency bucket reaches {gate.maximum} s: {longest}"


def history_of(counts: Sequence[BadCounts | None]) -> DispersionHistory:
    """Measure stable's past, as far as it lists the same instances throughout."""
    usable = [one for one in counts if one is not None]
    if len({len(one.requests) for one in usable}) > 1:
        return DispersionHistory()
    return DispersionHistory.from_intervals(usable)
