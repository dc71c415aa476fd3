"""Gates on scores and on memory get their samples from real instances, through a real Prometheus."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from activities.prometheus import PrometheusReader
from activities.stage_metrics import StageMetrics
from weightshift.analysis.counters import ArmRevisions
from weightshift.analysis.drift_gate import MINIMUM_SCORES, ScoreDrift
from weightshift.analysis.samples import Interval
from weightshift.analysis.watermark_gate import MemoryWatermark
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.plan import Gate, Metric
from weightshift.contracts.verdict import GateVerdict
from weightshift.local.prometheus import ScrapeTarget, prometheus_server
from weightshift.settings import MetricsSettings

SERVICE = Service(model="ranker", environment="test")
DRIFT = Gate(metric=Metric.SCORE_DRIFT, maximum=0.2)
MEMORY = Gate(metric=Metric.DEVICE_MEMORY, maximum=0.99)
pytestmark = pytest.mark.slow
REQUESTS = MINIMUM_SCORES + 50


async def answer(runtime: Any) -> None:
    """Send some requests, a few at once."""
    traffic = runtime.traffic()
    for start in range(0, REQUESTS, 10):
        await asyncio.gather(*(traffic.send(position % 60) for position in range(start, start + 10)))
    assert traffic.problems == []


async def read(metrics: StageMetrics, since: float, requests: int) -> Interval:
    """Wait until everything that was answered has been scraped."""
    async with asyncio.timeout(60):
        while True:
            now = time.time()
            interval = (await metrics.read(since - 30, now)).interval(since - 30, now)
            counted = [
                instance.scored
                for arm in (interval.canary, interval.stable)
                for instance in arm.instances.values()
            ]
            if len(counted) == 2 and all(one >= requests for one in counted):
                return interval
            # Prometheus scrapes once a second.
            await asyncio.sleep(0.5)


async def test_scores_and_memory_of_both_arms_reach_their_gates(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    stable = await control.publish("v41")
    canary = await control.publish("v42", cohort=Cohort.CANARY)
    token = tmp_path / "token"
    token.write_text(bench.admin_token, encoding="utf-8")
    async with AsyncExitStack() as stack:
        runtimes = {
            cohort: await stack.enter_async_context(
                bench.running(control, tmp_path / cohort, COHORT=cohort, INSTANCE_ID=f"{cohort}-0")
            )
            for cohort in ("stable", "canary")
        }
        targets = [
            ScrapeTarget(
                job="runtime", instance=f"{cohort}-0", port=runtime.admin.base_url.port, credentials=token
            )
            for cohort, runtime in runtimes.items()
        ]
        url = await stack.enter_async_context(prometheus_server(tmp_path, targets))
        for runtime in runtimes.values():
            await bench.until(runtime.is_ready)
        since = time.time()
        await asyncio.gather(*(answer(runtime) for runtime in runtimes.values()))
        metrics = StageMetrics(
            reader=PrometheusReader(settings=MetricsSettings(prometheus_url=url, scrape_interval=1.0)),
            service=SERVICE,
            revisions=ArmRevisions(canary=canary.revision, stable=stable.revision),
            gates=(DRIFT, MEMORY),
        )
        interval = await read(metrics, since, REQUESTS)
    assert interval.score_edges
    drift = ScoreDrift(DRIFT)
    evidence = drift.advance(drift.start(None, interval, []), interval, interval.stable)
    assert evidence.missing == ""
    assert evidence.intervals == 1
    memory = MemoryWatermark(MEMORY)
    judged = memory.judge(memory.advance(memory.start(None, interval, []), interval, interval.stable), 1.0)
    assert judged.verdict is GateVerdict.HEALTHY
