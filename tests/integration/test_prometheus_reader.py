"""What the gates of a stage are judged by, read back from a real Prometheus."""

import asyncio
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from activities.prometheus import PrometheusReader
from activities.stage_metrics import StageMetrics
from activities.traffic import MeasuredTraffic, Missing
from weightshift.analysis.counters import ArmRevisions
from weightshift.analysis.samples import Interval
from weightshift.contracts.identity import Service
from weightshift.contracts.plan import Gate, Metric
from weightshift.errors import QueryRefused
from weightshift.local.prometheus import ScrapeTarget, prometheus_server
from weightshift.settings import MetricsSettings

SERVICE = Service(model="ranker", environment="prod")
GATES = (
    Gate(metric=Metric.ERROR_RATE, maximum=0.1),
    Gate(metric=Metric.LATENCY, ratio=1.1),
    Gate(metric=Metric.SCORE_DRIFT, maximum=0.05),
    Gate(metric=Metric.REJECT_RATE, ratio=1.5),
    Gate(metric=Metric.DEVICE_MEMORY, maximum=0.9),
    Gate(
        metric=Metric.BUSINESS,
        label="abandoned",
        ratio=1.2,
        bad='abandoned_total{revision="$revision"}',
        total='carts_total{revision="$revision"}',
    ),
)

pytestmark = pytest.mark.slow


class Canary:
    """One canary instance's series, as the runtime names them."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        own = {"model": SERVICE.model, "environment": SERVICE.environment, "cohort": "canary"}
        labels = {**own, "revision": "8"}
        self.requests = Counter("weightshift_requests", "-", [*labels, "code"], registry=registry).labels(
            **labels, code="500"
        )
        self.latency = Histogram(
            "weightshift_request_duration_seconds", "-", labels, buckets=(0.1, 1.0, 2.5), registry=registry
        ).labels(**labels)
        self.scores = Histogram(
            "weightshift_prediction_score", "-", labels, buckets=(0.5,), registry=registry
        ).labels(**labels)
        self.rejected = Counter(
            "weightshift_rejected_requests", "-", [*own, "reason"], registry=registry
        ).labels(**own, reason="draining")
        self.memory = Gauge("weightshift_device_memory_used_ratio", "-", own, registry=registry).labels(**own)
        self.abandoned = Counter("abandoned", "-", ["revision"], registry=registry).labels("8")
        self.carts = Counter("carts", "-", ["revision"], registry=registry).labels("8")

    def serve_once(self) -> None:
        """One request of every kind."""
        self.requests.inc()
        self.latency.observe(2.0)
        self.scores.observe(0.7)
        self.rejected.inc()
        self.memory.set(0.25)
        self.abandoned.inc()
        self.carts.inc()


async def read_until_counted(
    metrics: StageMetrics,
    since: float,
    *,
    edges: tuple[float, ...] | None = None,
    step: float | None = None,
) -> Interval:
    async with asyncio.timeout(20):
        while True:
            now = time.time()
            counts = await metrics.read(since - 30, now, edges=edges, step=step)
            interval = counts.interval(since - 30, now)
            if interval.canary.requests == 1 and interval.canary.business:
                return interval
            await asyncio.sleep(0.1)


async def test_everything_a_gate_needs_is_read_back(tmp_path: Path) -> None:
    canary = Canary()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=canary.registry)
    target = ScrapeTarget(job="runtime", instance="canary-0", port=server.server_port)
    try:
        async with prometheus_server(tmp_path, [target]) as url:
            reader = PrometheusReader(settings=MetricsSettings(prometheus_url=url, scrape_interval=1.0))
            metrics = StageMetrics(
                reader=reader, service=SERVICE, revisions=ArmRevisions(canary=8, stable=7), gates=GATES
            )
            started = time.time()
            canary.serve_once()
            interval = await read_until_counted(metrics, started)
            some = await read_until_counted(metrics, started, edges=(1.0,))
            coarse = await read_until_counted(metrics, started, step=2.0)
            traffic = MeasuredTraffic(reader=reader)
            missing = [
                await traffic.missing(SERVICE, f'{name}{{revision="$revision"}}', stable_revision=revision)
                for name, revision in (("carts_total", 8), ("carts_total", 7), ("cards_total", 8))
            ]
            with pytest.raises(QueryRefused, match="parse error"):
                await traffic.missing(SERVICE, "rate(carts_total[1m])", stable_revision=8)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    one = interval.canary.instances["canary-0"]
    assert interval.edges == (0.1, 1.0, 2.5)
    assert (one.errors, one.slower, one.scores_above, one.rejected, one.memory) == (
        1,
        (1, 1, 0),
        (1,),
        1,
        0.25,
    )
    assert interval.canary.business[GATES[-1].name].total_bad == 1
    assert coarse == interval
    assert missing == [None, Missing.SERIES, Missing.COUNTER]
    assert (some.edges, some.canary.instances["canary-0"].slower) == ((1.0,), (1,))
