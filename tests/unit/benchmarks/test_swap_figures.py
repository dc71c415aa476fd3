"""What the benchmark of swaps makes of what an instance exposes."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from runtime.pause import PausePhase
from runtime.rollout_metrics import RolloutMetrics
from weightshift.contracts.identity import Cohort, Service

BENCHMARK = Path(__file__).parents[3] / "benchmarks/swap.py"
FLAWLESS = {"failed": 0, "misrouted": 0, "swaps": 1, "full_loads": 2}


@pytest.mark.parametrize(("paused", "missed"), [(True, set()), (False, {"swaps_without_a_pause"})])
def test_swaps_in_place_without_a_pause_miss_a_bar(paused: bool, missed: set[str]) -> None:
    benchmark: dict[str, Any] = runpy.run_path(str(BENCHMARK))
    service = Service(model="ranker", environment="benchmark")
    metrics = RolloutMetrics(service=service, cohort=Cohort.STABLE)
    if paused:
        metrics.pause.observe(0.3)
        for phase in PausePhase:
            metrics.phase_ended(phase, 0.1)
    figures = benchmark["pauses"](metrics.render().decode())
    assert figures["pauses"] == int(paused)
    bars = benchmark["promised"]({**FLAWLESS, **figures}, "in-place")
    assert {name for name, bar in bars.items() if not bar["ok"]} == missed
