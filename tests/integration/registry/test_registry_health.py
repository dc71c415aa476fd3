"""What the registry tells Prometheus about incidents and the fleet."""

from datetime import timedelta

import pytest

from tests.integration.registry.builders import (
    make_ready,
    publication_of,
    report_of,
    revocation_of,
    wave_of,
)
from weightshift.contracts.health import CohortHealth, Incident, RegistryHealth
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.wave import WaveRequest
from weightshift.errors import RevisionConflict, StaleFence
from weightshift.registry.base import Registry

MINUTE = timedelta(minutes=1)
AT_ONCE = timedelta(seconds=-1)
"""Shorter than any silence and any patience."""


async def health_of(registry: Registry, service: Service, **limits: timedelta) -> RegistryHealth:
    health = await registry.health(**({"lost_after": MINUTE, "mismatch_after": AT_ONCE} | limits))
    return RegistryHealth(
        services=tuple(one for one in health.services if one == service),
        incidents=tuple(one for one in health.incidents if one.service == service),
        cohorts=tuple(one for one in health.cohorts if one.service == service),
    )


def cohort_of(service: Service, cohort: Cohort = Cohort.CANARY, **counts: int) -> CohortHealth:
    return CohortHealth(
        service=service, cohort=cohort, **({"reporting": 0, "lost": 0, "mismatched": 0} | counts)
    )


async def test_a_refused_publication_is_counted_and_a_repeat_is_not(
    registry: Registry, service: Service
) -> None:
    await make_ready(registry, service, "v41")
    publication = publication_of(service, fence=Fence(epoch=1, sequence=5))
    for _ in range(2):
        await registry.publish(publication)
    for _ in range(2):
        with pytest.raises(RevisionConflict):
            await registry.publish(publication_of(service, fence=Fence(epoch=1, sequence=5)))
    with pytest.raises(StaleFence):
        await registry.publish(publication_of(service))
    health = await health_of(registry, service)
    assert {one.incident: one.count for one in health.incidents} == {
        Incident.PUBLISH_CONFLICT: 2,
        Incident.STALE_FENCE: 1,
    }
    assert health.services == (service,)


async def stale_fences(registry: Registry, service: Service) -> int:
    health = await health_of(registry, service)
    return {one.incident: one.count for one in health.incidents}.get(Incident.STALE_FENCE, 0)


async def test_a_repeat_that_a_newer_command_overtook_changes_nothing_and_is_counted(
    registry: Registry, service: Service
) -> None:
    await make_ready(registry, service, "v41", "v42")
    late = publication_of(service, artifact_id="v42", fence=Fence(epoch=1, sequence=1))
    published = await registry.publish(late)
    assert await registry.publish(late) == published
    assert await stale_fences(registry, service) == 0, "the answer may have been lost"
    sealed = await registry.publish(
        publication_of(service, expected_revision=None, fence=Fence(epoch=1, sequence=2))
    )
    assert await registry.publish(late) == published
    assert (await registry.targets(service)).canary == sealed
    assert await stale_fences(registry, service) == 1


async def test_waves_that_come_too_late_are_counted(registry: Registry, service: Service) -> None:
    await registry.grant_wave(wave_of(service, 1))
    await registry.grant_wave(wave_of(service, 1))
    assert await stale_fences(registry, service) == 0
    await registry.revoke_waves(revocation_of(service, 3))
    await registry.grant_wave(wave_of(service, 1))
    for late in (wave_of(service, 2), revocation_of(service, 2)):
        with pytest.raises(StaleFence):
            await (
                registry.grant_wave(late) if isinstance(late, WaveRequest) else registry.revoke_waves(late)
            )
    assert await stale_fences(registry, service) == 3
    assert await registry.wave_grants(service) == ()


async def test_an_instance_that_does_not_serve_what_is_desired_for_long_is_mismatched(
    registry: Registry, service: Service
) -> None:
    await make_ready(registry, service, "v41")
    await registry.publish(publication_of(service))
    await registry.report(report_of(service, "behind"))
    await registry.report(report_of(service, "up-to-date", revision=1))
    await registry.report(report_of(service, "leaving", draining=True))
    assert (await health_of(registry, service)).cohorts == (cohort_of(service, reporting=3, mismatched=1),)
    patient = await health_of(registry, service, mismatch_after=MINUTE)
    assert patient.cohorts == (cohort_of(service, reporting=3),)


async def test_an_instance_of_which_nothing_is_desired_is_not_mismatched(
    registry: Registry, service: Service
) -> None:
    await registry.report(report_of(service, "idle"))
    assert (await health_of(registry, service)).cohorts == (cohort_of(service, reporting=1),)


async def test_silent_instances_are_lost_unless_they_said_so(registry: Registry, service: Service) -> None:
    await registry.report(report_of(service, "crashed"))
    await registry.report(report_of(service, "left", draining=True))
    await registry.report(report_of(service, "stable-0", cohort=Cohort.STABLE))
    health = await health_of(registry, service, lost_after=AT_ONCE)
    assert health.cohorts == (
        cohort_of(service, lost=1),
        cohort_of(service, Cohort.STABLE, lost=1),
    )
