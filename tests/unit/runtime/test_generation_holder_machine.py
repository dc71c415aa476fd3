"""Random sequences of targets, installations, borrows and returns against a plain model."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.architectures import Ranker, RankerNetwork
from runtime.generation_holder import Generation, GenerationHolder, LoadedModel
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target
from weightshift.errors import NotServing

_ARCHITECTURE = Ranker()
_MODULE = RankerNetwork((1,))
_RESOURCES = _ARCHITECTURE.resources(
    {
        "config.json": b'{"hidden": [1]}',
        "normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [1.0] * 88}).encode(),
    }
)
_REVISIONS = st.integers(1, 8)
_DIGESTS = st.sampled_from(["a" * 64, "b" * 64])


def _target(revision: int, digest: str, floor: int = 0) -> Target:
    return Target(
        service=Service(model="ranker", environment="test"),
        cohort=Cohort.STABLE,
        revision=revision,
        artifact_id=digest[0],
        manifest_sha256=digest,
        feature_schema="ranker-v1",
        serve_floor=floor,
    )


class HolderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.retired: list[Generation] = []
        self.holder = GenerationHolder(retire=self.retired.append)
        self.created: list[Generation] = []
        self.borrowed: list[Generation] = []
        self.desired: Target | None = None
        self.current: Generation | None = None
        self.floor = 0

    @rule(revision=_REVISIONS, digest=_DIGESTS, floor=st.integers(0, 4))
    def aim(self, revision: int, digest: str, floor: int) -> None:
        floor = min(floor, revision)
        self.desired = _target(revision, digest, floor)
        self.floor = max(self.floor, floor)
        self.holder.aim(self.desired)

    @rule(revision=_REVISIONS, digest=_DIGESTS)
    def install(self, revision: int, digest: str) -> None:
        loaded = self.holder.claim(digest) or LoadedModel(
            manifest_sha256=digest,
            feature_schema="ranker-v1",
            architecture=_ARCHITECTURE,
            module=_MODULE,
            resources=_RESOURCES,
            device="cpu",
            allocated_bytes=0,
        )
        candidate = Generation(target=_target(revision, digest), loaded=loaded, runtime_build="test")
        self.created.append(candidate)
        wanted = (
            self.desired is not None
            and (self.desired.revision, self.desired.manifest_sha256) == (revision, digest)
            and (self.current is None or revision > self.current.revision)
        )
        assert self.holder.install(candidate) == wanted
        if wanted:
            self.current = candidate

    @rule()
    def acquire(self) -> None:
        if self.current is None or self.current.revision < self.floor:
            with pytest.raises(NotServing):
                self.holder.acquire()
            return
        generation = self.holder.acquire()
        assert generation is self.current
        self.borrowed.append(generation)

    @precondition(lambda self: self.borrowed)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.borrowed) - 1))
        self.holder.release(self.borrowed.pop(position))

    @precondition(lambda self: any(g in self.holder.resident for g in self.retired))
    @rule()
    def forget(self) -> None:
        generation = next(g for g in self.retired if g in self.holder.resident)
        freed = self.holder.forget(generation)
        shared = any(g.loaded is generation.loaded for g in self.holder.resident)
        assert (freed is None) == shared

    @invariant()
    def what_is_unused_and_superseded_is_retired_exactly_once(self) -> None:
        unused = [g for g in self.created if g is not self.current and g not in self.borrowed]
        assert len(self.retired) == len(set(self.retired))
        assert set(self.retired) == set(unused)

    @invariant()
    def references_are_the_borrows(self) -> None:
        assert all(g.references == self.borrowed.count(g) for g in self.created)


TestHolder = HolderMachine.TestCase
TestHolder.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
