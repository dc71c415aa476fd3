"""What the registry tells Prometheus, in its text format. Pure."""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from weightshift.contracts.health import CohortHealth, Incident, RegistryHealth

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SERVICE_LABELS = ("environment", "model")
_INCIDENTS = {
    Incident.PUBLISH_CONFLICT: ("publish_conflicts", "Publications refused because the target had changed"),
    Incident.STALE_FENCE: ("stale_fences", "Commands that came after a newer one and changed nothing"),
    Incident.REVISION_REUSED: ("revision_reuses", "Publications refused because their revision was taken"),
    Incident.REJECTED_IN_USE: ("rejected_in_use", "Artifacts rejected while they were in use"),
}


def render(health: RegistryHealth, *, waiting: int) -> bytes:
    """Return the exposition; `waiting` is how many clients wait for a target here."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(health, waiting))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, health: RegistryHealth, waiting: int) -> None:
        self._health = health
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        yield from self._incidents()
        yield from self._cohorts()
        yield GaugeMetricFamily(
            "weightshift_registry_waiting_clients",
            "Clients that wait for a target at this process",
            value=self._waiting,
        )

    def _incidents(self) -> Iterator[Metric]:
        counts = {(one.service, one.incident): one.count for one in self._health.incidents}
        for incident, (name, text) in _INCIDENTS.items():
            family = CounterMetricFamily(f"weightshift_registry_{name}", text, labels=_SERVICE_LABELS)
            # Zero before the first, or an alert on the increase would miss it.
            for service in self._health.services:
                labels = (service.environment, service.model)
                family.add_metric(labels, counts.get((service, incident), 0))
            yield family

    def _cohorts(self) -> Iterator[Metric]:
        def family(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(
                f"weightshift_registry_{name}", text, labels=(*_SERVICE_LABELS, "cohort")
            )

        reporting = family("instances", "Instances that report")
        lost = family("lost_instances", "Instances that fell silent without a word")
        mismatched = family(
            "mismatched_instances", "Instances that still do not serve what has been desired for long"
        )
        for cohort in self._health.cohorts:
            labels = _labels(cohort)
            reporting.add_metric(labels, cohort.reporting)
            lost.add_metric(labels, cohort.lost)
            mismatched.add_metric(labels, cohort.mismatched)
        yield from (reporting, lost, mismatched)


def _labels(cohort: CohortHealth) -> tuple[str, str, str]:
    return cohort.service.environment, cohort.service.model, cohort.cohort.value
