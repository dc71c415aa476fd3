"""Counters of what should not happen, for alerts."""

from temporalio import activity

from activities.options import ROLLBACK_STUCK


def count_drift() -> None:
    """Count a split that somebody else has changed."""
    _count("weightshift_mesh_drift", "Splits that somebody else had changed")


def count_unconfirmed() -> None:
    """Count a rollback that went on before its split was shown."""
    _count("weightshift_mesh_unconfirmed", "Rollbacks that went on before every proxy showed their split")


def count_stuck_write() -> None:
    """Count another attempt of a mesh write that does not get through."""
    _count("weightshift_mesh_write_stuck", "Attempts of a mesh write beyond the fifth")


def count_stuck_seal() -> None:
    """Count another attempt of a rollback to publish the healthy artifact that does not get through."""
    _count(*ROLLBACK_STUCK)


def count_stale_fence() -> None:
    """Count a command that came too late: somewhere a worker was thought dead and is not."""
    _count("weightshift_stale_fences", "Commands refused because a newer one was known")


def count_judged_without_registry() -> None:
    """Count a question of a judge that the registry did not answer; the stage is judged on without it."""
    _count("weightshift_judge_registry_errors", "Questions of a judge that the registry did not answer")


def count_undelivered(channel: str) -> None:
    """Count an attempt to notify that did not succeed."""
    _count("weightshift_notification_failures", "Attempts to notify that did not succeed", channel=channel)


def _count(name: str, description: str, **labels: str) -> None:
    if activity.in_activity():
        activity.metric_meter().create_counter(name, description).add(1, labels)
