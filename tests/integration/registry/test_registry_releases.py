import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest

from tests.integration.registry.builders import (
    admission_of,
    completion_of,
    make_ready,
    own,
    publication_of,
    record_of,
)
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.release import Outcome
from weightshift.contracts.target import Targets
from weightshift.errors import (
    ArtifactNotReady,
    Conflict,
    OperationConflict,
    ReleaseActive,
    StaleFence,
    UnknownArtifact,
)
from weightshift.registry.base import Registry

Ready = Callable[..., Awaitable[None]]


def unique(prefix: str) -> str:
    return prefix + secrets.token_hex(4)


async def test_an_admitted_release_gets_the_next_epoch(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    first = await registry.admit(admission_of(service, "R1"))
    await registry.complete(completion_of(service, "R1"))
    second = await registry.admit(admission_of(service, "R2"))
    assert (first.epoch, second.epoch) == (1, 2)


async def test_an_admission_shows_what_is_published(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    target = await registry.publish(publication_of(service))
    assert (await registry.admit(admission_of(service, "R1"))).targets == Targets(canary=target)


async def test_a_repeated_admission_returns_the_same_epoch(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    admission = admission_of(service, "R1")
    assert await registry.admit(admission) == await registry.admit(admission)
    assert len(await registry.audit(service)) == 1


async def test_a_release_id_cannot_be_used_for_another_request(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41", "v42")
    await registry.admit(admission_of(service, "R1"))
    with pytest.raises(OperationConflict, match="R1"):
        await registry.admit(admission_of(service, "R1", artifact_id="v42"))


async def test_a_release_id_cannot_be_used_by_a_second_workflow_run(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    first = admission_of(service, "R1")
    await registry.admit(first)
    with pytest.raises(OperationConflict, match="run"):
        await registry.admit(first.model_copy(update={"run_id": "run-2"}))


async def test_a_second_release_is_refused_and_told_whose_the_first_is(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1", operator="grace"))
    with pytest.raises(ReleaseActive, match="R1 by grace"):
        await registry.admit(admission_of(service, "R2"))


async def test_of_ten_releases_at_once_one_is_admitted(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    results = await asyncio.gather(
        *(registry.admit(admission_of(service, f"R{number}")) for number in range(10)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, ReleaseActive) for result in results) == 9
    assert len(await registry.releases(service)) == 1


async def test_only_a_ready_artifact_is_admitted(registry: Registry, service: Service) -> None:
    with pytest.raises(UnknownArtifact):
        await registry.admit(admission_of(service, "R1"))
    await registry.register_artifact(record_of(service), operator="ada")
    with pytest.raises(ArtifactNotReady):
        await registry.admit(admission_of(service, "R1"))
    assert await registry.releases(service) == ()


async def test_the_outcome_is_recorded_once(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    await registry.complete(completion_of(service, "R1", Outcome.ROLLED_BACK))
    await registry.complete(completion_of(service, "R1", Outcome.PROMOTED))
    (release,) = await registry.releases(service)
    assert release.outcome is Outcome.ROLLED_BACK
    assert release.finished_at is not None
    assert [row.step for row in await registry.audit(service)] == ["admit", "complete"]


async def test_completing_a_release_that_was_never_admitted_frees_nobody_elses_lock(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    await registry.complete(completion_of(service, "R2", Outcome.REFUSED))
    with pytest.raises(ReleaseActive):
        await registry.admit(admission_of(service, "R3"))


async def test_releases_are_listed_newest_first(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41")
    for release_id in ("R1", "R2"):
        await registry.admit(admission_of(service, release_id))
        await registry.complete(completion_of(service, release_id))
    listed = [release.release_id for release in await registry.releases(service)]
    assert listed == [own(service, "R2"), own(service, "R1")]


async def test_a_request_key_names_one_request(registry: Registry, service: Service, ready: Ready) -> None:
    await ready("v41", "v42")
    key = unique("pipeline-")
    await registry.admit(admission_of(service, "R1", request_key=key))
    with pytest.raises(Conflict, match=r"another request by release .*R1"):
        await registry.admit(admission_of(service, "R2", request_key=key, artifact_id="v42"))
    with pytest.raises(ReleaseActive, match="R1"):
        await registry.admit(admission_of(service, "R2", request_key=key))
    await registry.complete(completion_of(service, "R1"))
    with pytest.raises(Conflict, match="ended as promoted"):
        await registry.admit(admission_of(service, "R2", request_key=key))
    (release,) = await registry.releases(service)
    assert release.request_key == key
    assert release.request_digest == admission_of(service, "R2", request_key=key).request.digest()


async def test_an_admitted_release_outdates_every_earlier_one(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    await registry.complete(completion_of(service, "R1"))
    await registry.admit(admission_of(service, "R2"))
    with pytest.raises(StaleFence):
        await registry.publish(publication_of(service, fence=Fence(epoch=1, sequence=99)))


async def test_the_lock_of_a_dead_release_is_taken_over(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41", "v42")
    await registry.admit(admission_of(service, "R1"))
    heir = admission_of(service, "R2", artifact_id="v42", operator="grace")
    taken = await registry.take_over(own(service, "R1"), heir)
    assert taken.epoch == 2
    assert await registry.take_over(own(service, "R1"), heir) == taken
    new, old = await registry.releases(service)
    assert (new.release_id, new.outcome) == (own(service, "R2"), None)
    assert (old.outcome, old.finished_at is not None) == (Outcome.ABANDONED, True)
    assert "R2" in old.reason
    steps = [(row.step, row.operator) for row in await registry.audit(service)]
    assert steps == [("admit", "ada"), ("complete", "grace"), ("admit", "grace")]


async def test_a_dead_release_that_wakes_up_changes_nothing_any_more(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    await registry.take_over(own(service, "R1"), admission_of(service, "R2"))
    await registry.complete(completion_of(service, "R1"))
    with pytest.raises(ReleaseActive, match="R2"):
        await registry.admit(admission_of(service, "R3"))
    with pytest.raises(StaleFence):
        await registry.publish(publication_of(service, fence=Fence(epoch=1, sequence=99)))


async def test_a_lock_that_has_passed_on_is_not_taken_from_its_new_holder(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    await registry.take_over(own(service, "R1"), admission_of(service, "R2"))
    with pytest.raises(ReleaseActive, match="R2"):
        await registry.take_over(own(service, "R1"), admission_of(service, "R3"))


async def test_of_ten_heirs_at_once_one_takes_over(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R0"))
    results = await asyncio.gather(
        *(
            registry.take_over(own(service, "R0"), admission_of(service, f"R{number}"))
            for number in range(1, 11)
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(result, ReleaseActive) for result in results) == 9
    outcomes = [release.outcome for release in await registry.releases(service)]
    assert outcomes == [None, Outcome.ABANDONED]


async def test_a_lock_that_was_freed_meanwhile_is_simply_taken(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    await registry.complete(completion_of(service, "R1"))
    assert (await registry.take_over(own(service, "R1"), admission_of(service, "R2"))).epoch == 2
    assert (await registry.releases(service))[1].outcome is Outcome.PROMOTED


async def test_an_heir_that_may_not_start_leaves_the_lock_where_it_is(
    registry: Registry, service: Service, ready: Ready
) -> None:
    await ready("v41")
    await registry.admit(admission_of(service, "R1"))
    with pytest.raises(UnknownArtifact):
        await registry.take_over(own(service, "R1"), admission_of(service, "R2", artifact_id="v42"))
    (release,) = await registry.releases(service)
    assert (release.release_id, release.outcome) == (own(service, "R1"), None)


@pytest.mark.parametrize(("shared", "refusal"), [("key", Conflict), ("id", OperationConflict)])
async def test_of_ten_services_at_once_one_uses_a_key_or_an_id(
    registry: Registry, service: Service, shared: str, refusal: type[Exception]
) -> None:
    services = [service.model_copy(update={"model": f"{service.model}-{number}"}) for number in range(10)]
    for one in services:
        await make_ready(registry, one, "v41")
    admissions = [
        admission_of(one, one.model, request_key=service.model)
        if shared == "key"
        else admission_of(one, "R1")
        for one in services
    ]
    results = await asyncio.gather(
        *(registry.admit(admission) for admission in admissions), return_exceptions=True
    )
    assert sum(isinstance(result, refusal) for result in results) == 9
