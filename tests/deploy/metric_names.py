"""Names of metrics: what processes expose, and what queries ask for."""

import re

_TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
_NAME = re.compile(r"\b(?:weightshift|temporal)_[a-z0-9_]+\b")
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")


def exposed_names(exposition: str) -> set[str]:
    """Return the names of the series in a Prometheus text exposition."""
    names: set[str] = set()
    for name, kind in _TYPE.findall(exposition):
        names |= {name + part for part in _HISTOGRAM_PARTS} if kind == "histogram" else {name}
    return names


def asked_names(query: str) -> set[str]:
    """Return the names of our and Temporal's series in a query."""
    return set(_NAME.findall(_STRING.sub("", query)))


WORKER_SERIES = frozenset(
    {
        "temporal_worker_task_slots_available",
        "temporal_worker_task_slots_used",
        "temporal_workflow_task_execution_failed",
        "weightshift_mesh_drift",
        "weightshift_mesh_unconfirmed",
        "weightshift_mesh_write_stuck",
        "weightshift_notification_failures",
        "weightshift_rollback_stuck",
        "weightshift_stale_fences",
    }
)
"""What queries may ask of the worker; a test with a live one looks that it exposes them."""
