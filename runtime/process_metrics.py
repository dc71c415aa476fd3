"""The instance's Prometheus series of the process itself: memory, event loop, what is resident."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import fields

from prometheus_client import CollectorRegistry, Gauge, Histogram

from runtime.generation_holder import Generation
from runtime.memory_use import MemoryUse
from weightshift.contracts.identity import Cohort, Service

LAG_INTERVAL_SECONDS = 0.1
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class ProcessMetrics:
    """Gauges set before every scrape, and the event loop's lag, which is measured all the time."""

    def __init__(self, *, registry: CollectorRegistry, service: Service, cohort: Cohort) -> None:
        names = ["model", "environment", "cohort"]
        own = (service.model, service.environment, cohort.value)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"weightshift_{name}", text, names, registry=registry).labels(*own)

        memory = Gauge("weightshift_device_memory_bytes", "By kind.", [*names, "kind"], registry=registry)
        self._memory = {field.name: memory.labels(*own, field.name) for field in fields(MemoryUse)}
        self._memory_ratio = gauge("device_memory_used_ratio", "Used by the limit.")
        self._resident = gauge("generations_resident", "Generations in memory.")
        self._oldest_retired = gauge(
            "oldest_retired_generation_age_seconds", "Since the oldest resident one was replaced."
        )
        self._lag = Histogram(
            "weightshift_event_loop_lag_seconds",
            "How late a timer was.",
            names,
            buckets=_LAG_BUCKETS,
            registry=registry,
        ).labels(*own)
        self.turned_at = time.monotonic()
        """When the event loop was last known to turn (monotonic seconds); safe from any thread."""

    def read(self, memory: MemoryUse, resident: Sequence[Generation]) -> None:
        """Set the gauges to what is so now."""
        for field in fields(MemoryUse):
            self._memory[field.name].set(getattr(memory, field.name))
        self._memory_ratio.set(memory.used / memory.limit)
        self._resident.set(len(resident))
        retired = [one.retired_at for one in resident if one.retired_at is not None]
        self._oldest_retired.set(time.monotonic() - min(retired) if retired else 0)

    async def watch_loop(self) -> None:
        """Measure for ever how much later than due the event loop gets to a timer."""
        while True:
            due = time.monotonic() + LAG_INTERVAL_SECONDS
            await asyncio.sleep(LAG_INTERVAL_SECONDS)
            self.turned_at = time.monotonic()
            self._lag.observe(max(0.0, self.turned_at - due))
