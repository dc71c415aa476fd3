import secrets
from datetime import timedelta

from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.registry.base import Registry

MINUTE = timedelta(minutes=1)


def report_of(service: Service, instance_id: str = "gpu-0") -> InstanceReport:
    return InstanceReport(instance_id=instance_id, boot_id="1", service=service, cohort=Cohort.CANARY)


def unique(prefix: str) -> str:
    return prefix + secrets.token_hex(4)


async def test_the_newest_report_counts(registry: Registry, service: Service) -> None:
    report = report_of(service)
    await registry.report(report)
    await registry.report(report.model_copy(update={"ready": True}))
    (state,) = await registry.instances(service, lost_after=MINUTE)
    assert state.report.ready
    assert not state.lost
    assert 0 <= state.age_seconds < 60


async def test_a_silent_instance_is_lost(registry: Registry, service: Service) -> None:
    await registry.report(report_of(service))
    (state,) = await registry.instances(service, lost_after=timedelta(seconds=-1))
    assert state.lost


async def test_an_instance_that_said_it_drains_leaves_instead(registry: Registry, service: Service) -> None:
    await registry.report(report_of(service).model_copy(update={"draining": True}))
    assert len(await registry.instances(service, lost_after=MINUTE)) == 1
    assert await registry.instances(service, lost_after=timedelta(seconds=-1)) == ()


async def test_instances_are_listed_by_service_and_name(registry: Registry, service: Service) -> None:
    other = service.model_copy(update={"environment": unique("other-")})
    for instance_id in ("b", "a"):
        await registry.report(report_of(service, instance_id))
        await registry.report(report_of(other, instance_id))
    states = await registry.instances(service, lost_after=MINUTE)
    assert [(state.report.service, state.report.instance_id) for state in states] == [
        (service, "a"),
        (service, "b"),
    ]
