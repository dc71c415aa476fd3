"""What the registry concludes from instance reports. Pure; shared by every store."""

from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from weightshift.contracts.health import CohortHealth
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport, InstanceState

FORGET_INSTANCE_AFTER = timedelta(days=1)
"""How long a silent instance stays in the list."""


class Standing(NamedTuple):
    """One instance beside its target. Ages are seconds; the target's are None where none is published."""

    service: Service
    cohort: Cohort
    draining: bool
    age: float
    actual_revision: int
    desired_revision: int | None
    desired_for: float | None


def standing(
    report: InstanceReport, *, age: float, desired_revision: int | None, desired_for: float | None
) -> Standing:
    """Return a report beside its target."""
    return Standing(
        service=report.service,
        cohort=report.cohort,
        draining=report.draining,
        age=age,
        actual_revision=report.actual.revision if report.actual else 0,
        desired_revision=desired_revision,
        desired_for=desired_for,
    )


def instance_states(
    reports: Iterable[tuple[InstanceReport, float]], *, lost_after: timedelta
) -> tuple[InstanceState, ...]:
    """Return the instances with their age in seconds; those that have left are not among them."""
    limit = lost_after.total_seconds()
    return tuple(
        InstanceState(report=report, age_seconds=age, lost=age > limit)
        for report, age in reports
        if not _has_left(draining=report.draining, age=age, limit=limit)
    )


def cohort_health(
    standings: Iterable[Standing], *, lost_after: timedelta, mismatch_after: timedelta
) -> tuple[CohortHealth, ...]:
    """Count each cohort's instances.

    One is mismatched when it reports, but not the revision that has been desired for longer than
    `mismatch_after`.
    """
    limit, patience = lost_after.total_seconds(), mismatch_after.total_seconds()
    cohorts: dict[tuple[Service, Cohort], list[Standing]] = {}
    for one in standings:
        if not _has_left(draining=one.draining, age=one.age, limit=limit):
            cohorts.setdefault((one.service, one.cohort), []).append(one)
    return tuple(
        CohortHealth(
            service=service,
            cohort=cohort,
            reporting=sum(one.age <= limit for one in members),
            lost=sum(one.age > limit for one in members),
            mismatched=sum(one.age <= limit and _is_mismatched(one, patience) for one in members),
        )
        for (service, cohort), members in sorted(cohorts.items(), key=lambda item: str(item[0]))
    )


def _is_mismatched(one: Standing, patience: float) -> bool:
    is_overdue = one.desired_for is not None and one.desired_for > patience
    return is_overdue and not one.draining and one.actual_revision != one.desired_revision


def _has_left(*, draining: bool, age: float, limit: float) -> bool:
    """Whether a silent instance is gone for good: it had said so, or nobody expects it any more."""
    return age > limit and (draining or age > FORGET_INSTANCE_AFTER.total_seconds())
