"""Traffic that was moved past the workflow is recorded under the token's name."""

import pytest

from tests.unit.registry.test_registry_service_routes import RECORD
from weightshift.contracts.evidence import BrokenGlass
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Admission, ReleaseRequest
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import Unauthorised
from weightshift.registry.client import RegistryClient
from weightshift.registry.memory import MemoryRegistry

BROKEN = BrokenGlass(
    operation_id="1",
    before=TrafficSplit.with_canary(25),
    split=TrafficSplit.all_to(Cohort.STABLE),
    fence=Fence.above_all(1),
    operator="grace\x1b",
    reason="Temporal is down",
)


async def admitted(registry: MemoryRegistry, service: Service) -> None:
    """Have a release R1 run."""
    await registry.register_artifact(RECORD, operator="ci")
    await registry.approve_artifact("ranker", "v41", operator="ada")
    request = ReleaseRequest(release_id="R1", service=service, artifact_id="v41", plan=Plan(), operator="ci")
    await registry.admit(Admission(request=request, run_id="run-1"))


async def test_it_is_recorded_once_with_who_and_why(
    operator: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    await operator.record_broken_glass(service, BROKEN)
    await operator.record_broken_glass(service, BROKEN)
    (row,) = await registry.audit(service)
    assert (row.step, row.operator, row.release_id) == ("break-glass", "ada", None)
    assert row.summary == "broke the glass (grace): traffic 100/0, it was 75/25: Temporal is down"
    assert row.data["split"] == {"stable": 100, "canary": 0}
    assert row.data["fence"] == Fence.above_all(1).model_dump()


async def test_it_is_a_row_of_the_release_that_runs(
    operator: RegistryClient, registry: MemoryRegistry, service: Service
) -> None:
    await admitted(registry, service)
    await operator.record_broken_glass(service, BROKEN)
    assert (await registry.audit(service, release_id="R1"))[-1].step == "break-glass"


async def test_it_is_for_operators(runtime: RegistryClient, service: Service) -> None:
    with pytest.raises(Unauthorised):
        await runtime.record_broken_glass(service, BROKEN)
