"""The gate on the device memory of the canary's instances."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weightshift.analysis.evidence import Evidence
from weightshift.analysis.samples import ArmCounts, Interval
from weightshift.analysis.sequential import Wealth
from weightshift.contracts.plan import Gate
from weightshift.contracts.verdict import GateResult, GateVerdict

INTERVALS_OVER = 2


@dataclass(frozen=True)
class MemoryWatermark:
    """No instance of the canary uses more than `maximum` of its device's memory, two intervals running.

    A level, not a count of events: nothing is estimated, so there is no evidence to gather either way.
    """

    gate: Gate

    @property
    def name(self) -> str:
        """The gate's name."""
        return self.gate.name

    def start(self, harm: Wealth | None, calibration: Interval, history: Sequence[Interval]) -> Evidence:
        """Begin a stage."""
        return Evidence(harm or Wealth.fresh(1), missing="no instance reports its device memory")

    def advance(self, evidence: Evidence, interval: Interval, calibration: ArmCounts) -> Evidence:
        """Count how many intervals running the mark was exceeded; `intervals` holds that number."""
        levels = [counts.memory for counts in interval.canary.instances.values()]
        known = [level for level in levels if level is not None]
        if not known or len(known) < len(levels):
            return replace(evidence, missing="not every instance reports its device memory")
        over = max(known) > (self.gate.maximum or 1.0)
        return replace(evidence, missing="", intervals=evidence.intervals + 1 if over else 0)

    def judge(self, evidence: Evidence, threshold: float) -> GateResult:
        """Breach at two intervals over the mark; healthy while every instance is known to be below."""
        if evidence.intervals >= INTERVALS_OVER:
            verdict, detail = GateVerdict.BREACH, f"over the mark for {evidence.intervals} intervals"
        elif evidence.missing:
            verdict, detail = GateVerdict.NO_DATA, evidence.missing
        elif evidence.intervals:
            verdict, detail = GateVerdict.INSUFFICIENT, "over the mark in the last interval"
        else:
            verdict, detail = GateVerdict.HEALTHY, ""
        return GateResult(gate=self.name, verdict=verdict, detail=detail)
