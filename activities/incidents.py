"""Counters of what should not happen, for alerts."""

from temporalio import activity


def count_drift() -> None:
    """Count a split that somebody else has changed."""
    _count("weightshift_mesh_drift", "Splits that somebody else had changed")


def count_unconfirmed() -> None:
    """Count a rollback that went on before its split was shown."""
    _count("weightshift_mesh_unconfirmed", "Rollbacks that went on before every proxy showed their split")


def _count(name: str, description: str) -> None:
    if activity.in_activity():
        activity.metric_meter().create_counter(name, description).add(1)
