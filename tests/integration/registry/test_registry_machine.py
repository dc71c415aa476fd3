"""Random histories, concurrent ones included: the database always does what the in-memory twin would.

A race of several publishers is explained when some order of them, on the twin, has the same outcomes.
"""

import asyncio
import copy
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pydantic import BaseModel

from tests.integration.registry.builders import (
    admission_of,
    completion_of,
    make_ready,
    publication_of,
    record_of,
    revocation_of,
    wave_of,
)
from weightshift.contracts.evidence import AuditHead
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.target import Publication
from weightshift.errors import RevisionConflict, WeightshiftError
from weightshift.local.postgres import PostgresAddress
from weightshift.registry.base import Registry
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.verify import verify_chain

Command = Callable[[Registry], Awaitable[Any]]

# Two different clocks wrote these.
_MOMENTS = {"updated_at", "created_at", "expires_at", "started_at", "finished_at"}

SETTINGS = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

FENCES = st.builds(Fence, epoch=st.integers(0, 3), sequence=st.integers(0, 5))
ARTIFACTS = st.sampled_from(["v1", "v2", "pending", "unknown"])
RELEASES = st.integers(1, 4)


def plain(value: Any) -> Any:
    """A result without moments and random ids."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in _MOMENTS}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


async def outcome(registry: Registry, command: Command) -> Any:
    """What a command returned, or the kind of error it raised."""
    try:
        return plain(await command(registry))
    except WeightshiftError as error:
        return type(error).__name__


def publishing(publication: Publication) -> Command:
    return lambda registry: registry.publish(publication)


class RegistryMachine(RuleBasedStateMachine):
    """The database and the twin get the same commands."""

    runner: asyncio.Runner
    real: PostgresRegistry

    def __init__(self) -> None:
        super().__init__()
        self.twin = MemoryRegistry()
        self.service = Service(model="ranker", environment="unset")
        self.sent: list[Publication] = []
        self.operations = 0

    @initialize()
    def begin(self) -> None:
        name = f"machine-{secrets.token_hex(6)}"
        self.service = Service(model=name, environment=name)
        for registry in (self.real, self.twin):
            self.runner.run(make_ready(registry, self.service, "v1", "v2"))
            pending = record_of(self.service, "pending")
            self.runner.run(registry.register_artifact(pending, operator="ada"))

    def both(self, command: Command) -> Any:
        """Give both a command; they must agree."""
        real = self.runner.run(outcome(self.real, command))
        twin = self.runner.run(outcome(self.twin, command))
        assert real == twin
        return real

    def held(self, cohort: Cohort) -> int:
        target = self.runner.run(self.twin.targets(self.service)).of(cohort)
        return target.revision if target else 0

    def publication(self, **changes: Any) -> Publication:
        self.operations += 1
        publication = publication_of(self.service, operation_id=f"operation-{self.operations}", **changes)
        self.sent.append(publication)
        return publication

    @rule(
        cohort=st.sampled_from(Cohort),
        artifact_id=ARTIFACTS,
        behind=st.sampled_from([0, 0, 0, 1, -1]),
        fence=FENCES,
        flags=st.fixed_dictionaries({"raise_serve_floor": st.booleans(), "requires_grant": st.booleans()}),
    )
    def publish(
        self, cohort: Cohort, artifact_id: str, behind: int, fence: Fence, flags: dict[str, bool]
    ) -> None:
        expected = max(0, self.held(cohort) - behind)
        self.both(
            publishing(
                self.publication(
                    cohort=cohort,
                    artifact_id=artifact_id,
                    expected_revision=expected,
                    fence=fence,
                    **flags,
                )
            )
        )

    @rule(cohort=st.sampled_from(Cohort), fence=FENCES)
    def seal(self, cohort: Cohort, fence: Fence) -> None:
        publication = self.publication(cohort=cohort, artifact_id="v1", expected_revision=None, fence=fence)
        self.both(publishing(publication))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), change=st.sampled_from([{}, {}, {"artifact_id": "v2"}, {"reason": "other"}]))
    def repeat(self, data: st.DataObject, change: dict[str, str]) -> None:
        first = data.draw(st.sampled_from(self.sent))
        self.both(publishing(first.model_copy(update=change)))

    @rule(
        fences=st.lists(FENCES, min_size=2, max_size=3),
        cohort=st.sampled_from(Cohort),
        sealing=st.lists(st.booleans(), min_size=3, max_size=3),
        repeated=st.booleans(),
    )
    def race(self, fences: list[Fence], cohort: Cohort, sealing: list[bool], repeated: bool) -> None:
        held = self.held(cohort)
        publications = [
            self.publication(
                cohort=cohort, artifact_id="v1", expected_revision=None if seals else held, fence=fence
            )
            for fence, seals in zip(fences, sealing, strict=False)
        ]
        if repeated:
            publications[-1] = publications[0]
        results = self.runner.run(self.at_once([publishing(one) for one in publications]))
        assert self.explain(publications, results), results

    @rule(publishers=st.integers(2, 12), fence=FENCES)
    def race_of_equals(self, publishers: int, fence: Fence) -> None:
        held = self.held(Cohort.CANARY)
        publications = [
            self.publication(artifact_id="v2", expected_revision=held, fence=fence) for _ in range(publishers)
        ]
        results = self.runner.run(self.at_once([publishing(one) for one in publications]))
        winners = [one for one in results if isinstance(one, dict)]
        if winners:
            assert len(winners) == 1
            assert results.count(RevisionConflict.__name__) == publishers - 1
            self.runner.run(outcome(self.twin, publishing(publications[results.index(winners[0])])))
        else:
            # Too late, all of them.
            assert set(results) == {self.runner.run(outcome(self.twin, publishing(publications[0])))}

    @rule(number=RELEASES, artifact_id=ARTIFACTS, holder=st.none() | RELEASES)
    def admit(self, number: int, artifact_id: str, holder: int | None) -> None:
        admission = admission_of(self.service, f"R{number}", artifact_id=artifact_id)
        if holder is None:
            self.both(lambda registry: registry.admit(admission))
        else:
            held_by = admission_of(self.service, f"R{holder}").request.release_id
            self.both(lambda registry: registry.take_over(held_by, admission))

    @rule(number=RELEASES)
    def complete(self, number: int) -> None:
        self.both(lambda registry: registry.complete(completion_of(self.service, f"R{number}")))

    @rule(fence=FENCES, revokes=st.booleans(), again=st.booleans())
    def wave(self, fence: Fence, revokes: bool, again: bool) -> None:
        self.operations += not again
        changes = {"fence": fence, "operation_id": f"wave-{self.operations}"}
        if revokes:
            revocation = revocation_of(self.service, 0, **changes)
            self.both(lambda registry: registry.revoke_waves(revocation))
        else:
            request = wave_of(self.service, 0, **changes)
            self.both(lambda registry: registry.grant_wave(request))

    @rule()
    def reject(self) -> None:
        self.both(
            lambda registry: registry.reject_artifact(self.service.model, "v2", operator="bob", reason="bad")
        )

    @invariant()
    def they_show_the_same(self) -> None:
        service = self.service
        self.both(lambda registry: registry.targets(service))
        self.both(lambda registry: registry.releases(service))
        self.both(lambda registry: registry.wave_grants(service))
        self.both(self.story)

    @invariant()
    def the_chain_is_whole(self) -> None:
        for registry in (self.real, self.twin):
            head = self.runner.run(verify_chain(registry.audit_page, self.service.environment))
            assert isinstance(head, AuditHead)

    async def story(self, registry: Registry) -> list[tuple[Any, ...]]:
        rows = await registry.audit(self.service)
        return [(row.sequence, row.step, row.operation_id, row.operator, row.summary) for row in rows]

    async def at_once(self, commands: Sequence[Command]) -> list[Any]:
        return await asyncio.gather(*(outcome(self.real, command) for command in commands))

    def explain(self, publications: Sequence[Publication], results: Sequence[Any]) -> bool:
        """Whether some order explains the results; the twin then has gone through it."""
        for order in itertools.permutations(range(len(publications))):
            twin = copy.deepcopy(self.twin)
            outcomes = {
                index: self.runner.run(outcome(twin, publishing(publications[index]))) for index in order
            }
            if all(outcomes[index] == result for index, result in enumerate(results)):
                self.twin = twin
                return True
        return False


def test_the_database_does_what_the_twin_would(database: PostgresAddress) -> None:
    with asyncio.Runner() as runner:
        real = runner.run(PostgresRegistry.connect(dsn=database.application_dsn, pool_size=12))
        machine = type("Machine", (RegistryMachine,), {"runner": runner, "real": real})
        try:
            run_state_machine_as_test(machine, settings=SETTINGS)
        finally:
            runner.run(real.close())
