"""The curves of a report, read back from a real Prometheus."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from weightshift.contracts.identity import Service
from weightshift.errors import MetricsUnreachable
from weightshift.local.ports import free_ports
from weightshift.local.prometheus import ScrapeTarget, prometheus_server
from weightshift.report.document import Measured
from weightshift.report.prometheus import POINTS, PrometheusHistory
from weightshift.settings import MetricsSettings

SERVICE = Service(model="ranker", environment="prod")

pytestmark = pytest.mark.slow


async def until_measured(history: PrometheusHistory, requests: Counter, latency: Histogram) -> Measured:
    """Let one of four requests of the canary fail until Prometheus shows it."""
    started = datetime.now(UTC)
    own = {"model": SERVICE.model, "environment": SERVICE.environment, "cohort": "canary", "revision": "8"}
    async with asyncio.timeout(20):
        while True:
            for code in ("200", "200", "200", "500"):
                requests.labels(**own, code=code).inc()
                latency.labels(**own).observe(0.3)
            measured = await history.read(SERVICE, started, datetime.now(UTC))
            if any(measured.canary.error_rate):
                return measured
            await asyncio.sleep(0.1)


async def test_error_rate_and_p99_by_cohort(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    labels = ["model", "environment", "cohort", "revision"]
    requests = Counter("weightshift_requests", "-", [*labels, "code"], registry=registry)
    latency = Histogram(
        "weightshift_request_duration_seconds", "-", labels, buckets=(0.1, 1.0), registry=registry
    )
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    target = ScrapeTarget(job="runtime", instance="canary-0", port=server.server_port)
    try:
        async with prometheus_server(tmp_path, [target]) as url:
            history = PrometheusHistory(settings=MetricsSettings(prometheus_url=url, scrape_interval=1.0))
            measured = await until_measured(history, requests, latency)
            now = datetime.now(UTC)
            day = await history.read(SERVICE, now - timedelta(days=1), now)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    (*_, (rate, p99)) = (
        both for both in zip(measured.canary.error_rate, measured.canary.p99, strict=True) if both[0]
    )
    assert rate == pytest.approx(0.25, abs=0.1)
    assert p99 == pytest.approx(0.991)
    assert set(measured.stable.error_rate) == {None}, "an arm without requests has no rate"
    assert len(day.at) <= POINTS + 1


async def test_a_prometheus_that_is_away_is_named() -> None:
    (port,) = free_ports(1)
    history = PrometheusHistory(settings=MetricsSettings(prometheus_url=f"http://127.0.0.1:{port}"))
    now = datetime.now(UTC)
    with pytest.raises(MetricsUnreachable, match="Prometheus did not answer"):
        await history.read(SERVICE, now - timedelta(minutes=1), now)
