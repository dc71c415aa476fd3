"""A stack is up once its instances report."""

import pytest

from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport, InstanceState
from weightshift.errors import LocalStackError, RegistryUnreachable
from weightshift.local.instances import wait_for_reports

SERVICE = Service(model="ranker", environment="local")


def state(name: str, *, lost: bool = False) -> InstanceState:
    report = InstanceReport(instance_id=name, boot_id="1", service=SERVICE, cohort=Cohort.STABLE)
    return InstanceState(report=report, age_seconds=0.1, lost=lost)


class Answers:
    """A registry that gives one answer after the other, and the last one from then on."""

    def __init__(self, *answers: tuple[InstanceState, ...] | Exception) -> None:
        self.left = list(answers)

    async def instances(self, service: Service) -> tuple[InstanceState, ...]:
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_it_waits_until_every_instance_reports_and_none_is_lost() -> None:
    registry = Answers(
        RegistryUnreachable(),
        (state("stable-0", lost=True), state("canary-0")),
        (state("stable-0"), state("canary-0")),
    )
    await wait_for_reports(registry, SERVICE, ("stable-0", "canary-0"), seconds=10)
    assert len(registry.left) == 1


async def test_those_that_never_report_are_named() -> None:
    registry, names = Answers((state("stable-0"),)), ("canary-1", "stable-0", "canary-0")
    with pytest.raises(LocalStackError, match=r"^canary-0, canary-1 did not report"):
        await wait_for_reports(registry, SERVICE, names, seconds=0.05)
