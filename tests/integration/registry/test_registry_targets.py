import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.registry.builders import publication_of, record_of
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.target import Targets
from weightshift.errors import (
    ArtifactNotReady,
    OperationConflict,
    RevisionConflict,
    StaleFence,
    UnknownArtifact,
)
from weightshift.registry.base import Registry

Ready = Callable[..., Awaitable[None]]


async def test_nothing_is_published_at_first(registry: Registry, service: Service) -> None:
    assert await registry.targets(service) == Targets()


async def test_a_published_target_can_be_read(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    target = await registry.publish(publication_of(service))
    assert (target.revision, target.artifact_id, target.serve_floor) == (1, "v41", 0)
    assert target.manifest_sha256 == "a" * 64
    assert await registry.targets(service) == Targets(canary=target)


async def test_both_cohorts_count_in_one_sequence(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    canary = await registry.publish(publication_of(service))
    stable = await registry.publish(publication_of(service, cohort=Cohort.STABLE))
    again = await registry.publish(publication_of(service, expected_revision=1))
    assert [canary.revision, stable.revision, again.revision] == [1, 2, 3]


async def test_a_repeat_returns_the_first_result_even_after_others(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    publication = publication_of(service)
    first = await registry.publish(publication)
    await registry.publish(publication_of(service, expected_revision=1, fence=Fence(epoch=1, sequence=2)))
    assert await registry.publish(publication) == first
    assert len(await registry.audit(service)) == 2


@pytest.mark.parametrize(
    "change", [{"artifact_id": "v42"}, {"expected_revision": 1}, {"cohort": Cohort.STABLE}]
)
async def test_an_operation_id_cannot_be_used_for_something_else(
    registry: Registry, service: Service, ready: Ready, change: dict[str, Any]
) -> None:
    await ready("v41", "v42")
    await registry.publish(publication_of(service, operation_id="R1/1"))
    with pytest.raises(OperationConflict, match="R1/1"):
        await registry.publish(publication_of(service, operation_id="R1/1", **change))


async def test_only_a_ready_artifact_is_published(registry: Registry, service: Service) -> None:
    with pytest.raises(UnknownArtifact):
        await registry.publish(publication_of(service))
    await registry.register_artifact(record_of(service), operator="ada")
    with pytest.raises(ArtifactNotReady, match="pending"):
        await registry.publish(publication_of(service))
    await registry.reject_artifact(service.model, "v41", operator="ada", reason="no")
    with pytest.raises(ArtifactNotReady, match="rejected"):
        await registry.publish(publication_of(service, expected_revision=None))
    assert await registry.targets(service) == Targets()
    assert await registry.audit(service) == ()


async def test_a_conflict_says_what_is_there(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    with pytest.raises(RevisionConflict, match="nothing"):
        await registry.publish(publication_of(service, expected_revision=3))
    await registry.publish(publication_of(service))
    with pytest.raises(RevisionConflict, match=r"revision 1 \(v41\)"):
        await registry.publish(publication_of(service, expected_revision=0))


async def test_a_conflict_leaves_no_trace(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    first = await registry.publish(publication_of(service))
    with pytest.raises(RevisionConflict):
        await registry.publish(publication_of(service))
    assert await registry.targets(service) == Targets(canary=first)
    assert len(await registry.audit(service)) == 1
    second = await registry.publish(publication_of(service, expected_revision=1))
    assert second.revision == 2


async def test_a_seal_needs_no_expected_revision(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41", "v42")
    await registry.publish(publication_of(service, artifact_id="v42"))
    sealed = await registry.publish(publication_of(service, expected_revision=None))
    assert (sealed.revision, sealed.artifact_id) == (2, "v41")


async def test_a_command_that_comes_too_late_is_refused(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    sealed = await registry.publish(publication_of(service, fence=Fence(epoch=1, sequence=7)))
    for fence in (Fence(epoch=1, sequence=6), Fence(epoch=0, sequence=9)):
        with pytest.raises(StaleFence, match=r"1\.7"):
            await registry.publish(publication_of(service, fence=fence, expected_revision=None))
    assert (await registry.targets(service)).canary == sealed


async def test_cohorts_are_fenced_apart(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    await registry.publish(publication_of(service, fence=Fence(epoch=1, sequence=7)))
    stable = await registry.publish(publication_of(service, cohort=Cohort.STABLE))
    assert stable.revision == 2


async def test_the_serve_floor_rises_on_request_and_never_falls(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    raised = await registry.publish(publication_of(service, raise_serve_floor=True))
    kept = await registry.publish(publication_of(service, expected_revision=1))
    assert (raised.serve_floor, kept.serve_floor, kept.revision) == (1, 1, 2)


@pytest.mark.parametrize("held", [0, 1])
async def test_of_fifty_publishers_that_read_the_same_one_wins(
    registry: Registry, service: Service, ready: Ready, held: int
) -> None:
    await ready("v41")
    for revision in range(held):
        await registry.publish(publication_of(service, expected_revision=revision))
    results = await asyncio.gather(
        *(registry.publish(publication_of(service, expected_revision=held)) for _ in range(50)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, RevisionConflict) for result in results) == 49
    (winner,) = (result for result in results if not isinstance(result, BaseException))
    assert await registry.targets(service) == Targets(canary=winner)
    assert len(await registry.audit(service)) == held + 1


async def test_a_publication_sent_ten_times_at_once_counts_once(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    publication = publication_of(service)
    results = await asyncio.gather(*(registry.publish(publication) for _ in range(10)))
    assert {result.revision for result in results} == {1}
    assert len(await registry.audit(service)) == 1
