"""Stand-ins for what is outside the release: instances, the judge, a mesh that counts."""

import asyncio
from datetime import timedelta

from temporalio import activity

from activities.evidence import record_evidence
from activities.traffic import Missing
from weightshift.analysis.sizing import ObservedTraffic
from weightshift.contracts.commands import CarriedWealth, Observation, Observed, ObserveMode
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import (
    CandidatePhase,
    CandidateProgress,
    InstanceError,
    InstanceReport,
    LoadedGeneration,
)
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.notification import Notification
from weightshift.contracts.target import Target
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.contracts.verdict import StageOutcome, StageVerdict
from weightshift.errors import QueryRefused
from weightshift.mesh.memory import MemoryMesh
from weightshift.registry.memory import MemoryRegistry


async def approved_artifact(
    registry: MemoryRegistry, model: str, artifact_id: str, *, feature_schema: str = "ranker-v1"
) -> None:
    """Register an artifact and approve it."""
    record = ArtifactRecord(
        model=model,
        artifact_id=artifact_id,
        manifest_uri=f"memory://{artifact_id}",
        manifest_sha256=artifact_id.encode().hex().ljust(64, "0"),
        feature_schema=feature_schema,
    )
    await registry.register_artifact(record, operator="ci")
    await registry.approve_artifact(model, artifact_id, operator="ci")


class SimulatedFleet:
    """Instances that follow their cohort's target at once, in waves by their grants, unless told otherwise.

    `unfit` and `stuck` name artifacts, or one instance's: `stable-0 v42`; `unready` names instances.
    """

    def __init__(self, registry: MemoryRegistry, service: Service) -> None:
        self._registry = registry
        self._service = service
        self._instances = [(cohort, f"{cohort}-{i}") for cohort in Cohort for i in range(2)]
        self.unfit: set[str] = set()
        self.stuck: set[str] = set()
        self.unready: set[str] = set()
        self.capacities: dict[str, float] = {}
        self.devices: dict[str, str] = {}
        self.served: list[tuple[str, int, str]] = []
        self._taken: dict[str, Target] = {}

    def scale(self, cohort: Cohort, instances: int) -> None:
        """Have so many instances of a cohort; those that are gone report no more."""
        others = [one for one in self._instances if one[0] is not cohort]
        self._instances = [*others, *((cohort, f"{cohort}-{i}") for i in range(instances))]

    async def replace(self, instance_id: str, by: str) -> None:
        """Have another instance in place of one, whose last word is that it drains."""
        (cohort,) = (cohort for cohort, name in self._instances if name == instance_id)
        others = [one for one in self._instances if one[1] != instance_id]
        self._instances = [*others, (cohort, by)]
        last = self._report(cohort, instance_id, self._taken[instance_id])
        await self._registry.report(last.model_copy(update={"draining": True, "ready": False}))

    async def run(self) -> None:
        """Report for ever."""
        while True:
            await self.follow()
            await asyncio.sleep(0.005)

    async def follow(self) -> None:
        """Let every instance take one look at its target."""
        if not self._registry.available:
            return
        targets = await self._registry.targets(self._service)
        grants = await self._registry.wave_grants(self._service)
        for cohort, instance_id in self._instances:
            target = targets.of(cohort)
            taken = self._taken.get(instance_id)
            granted = target and any(grant.covers(instance_id, target.revision) for grant in grants)
            if target and taken and target.requires_grant and not granted:
                target = taken
            await self._registry.report(self._report(cohort, instance_id, target))

    async def has_reported(self) -> bool:
        """Whether the registry knows every instance as it is now."""
        states = await self._registry.instances(self._service, lost_after=timedelta(hours=1))
        reports = {state.report.instance_id: state.report for state in states}
        return all(
            (reports[name].servable_capacity, reports[name].device)
            == (self.capacities.get(name, 1.0), self.devices.get(name, ""))
            for _, name in self._instances
        )

    def _report(self, cohort: Cohort, instance_id: str, target: Target | None) -> InstanceReport:
        base = InstanceReport(
            instance_id=instance_id,
            boot_id="1",
            service=self._service,
            cohort=cohort,
            ready=instance_id not in self.unready,
            servable_capacity=self.capacities.get(instance_id, 1.0),
            device=self.devices.get(instance_id, ""),
        )
        if target is None:
            return base.model_copy(update={"ready": False})
        names = {target.artifact_id, f"{instance_id} {target.artifact_id}"}
        if names & self.unfit:
            return base.model_copy(update={"candidate": _unfit(target)})
        if names & self.stuck:
            return base.model_copy(update={"candidate": _candidate(target, CandidatePhase.LOADING)})
        self._taken[instance_id] = target
        served = (instance_id, target.revision, target.artifact_id)
        if served not in self.served:
            self.served.append(served)
        actual = LoadedGeneration(
            revision=target.revision,
            artifact_id=target.artifact_id,
            manifest_sha256=target.manifest_sha256,
            feature_schema=target.feature_schema,
            generation=target.revision,
        )
        candidate = _candidate(target, CandidatePhase.INSTALLED)
        return base.model_copy(update={"actual": actual, "candidate": candidate})


def _candidate(target: Target, phase: CandidatePhase) -> CandidateProgress:
    return CandidateProgress(
        revision=target.revision,
        artifact_id=target.artifact_id,
        phase=phase,
        phase_seconds={"waiting": 90.0, "downloading": 0.5, "loading": 0.25},
    )


def _unfit(target: Target) -> CandidateProgress:
    error = InstanceError(
        type="IncompatibleModel",
        message="layers.0.weight has shape [64, 82], the architecture needs [64, 88]",
        phase=CandidatePhase.VERIFYING,
        permanent=True,
    )
    return _candidate(target, CandidatePhase.FAILED).model_copy(update={"error": error})


class ScriptedObservations:
    """Stands in for the judgement of metrics: healthy, unless a weight is told otherwise."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self.outcomes: dict[int, list[StageOutcome]] = {}
        self.asked: list[Observation] = []
        self.blocked: set[int] = set()
        self.patient = False
        self.said = "7 of 200 samples"
        self.wealth: dict[str, CarriedWealth] = {}
        self.reached = asyncio.Condition()
        self._registry = registry

    @activity.defn(name="metrics.observe")
    async def observe(self, observation: Observation) -> Observed:
        """Answer by the script; a blocked weight is judged for ever, and a watch ends by a breach alone."""
        weight = observation.stage.weight
        async with self.reached:
            self.asked.append(observation)
            self.reached.notify_all()
        while weight in self.blocked or self._has_to_watch(observation) or self._is_overtaken(observation):
            activity.heartbeat(self.said)
            await asyncio.sleep(0.01)
        if self.patient:
            await asyncio.sleep(observation.stage.window.total_seconds() + 0.1)
        script = self.outcomes.get(weight, [])
        outcome = script.pop(0) if script else StageOutcome.HEALTHY
        verdict = StageVerdict(outcome=outcome, reason=f"scripted {outcome}")
        recorded = self._registry.available
        if recorded:
            await record_evidence(self._registry, observation.evidence)
        return Observed(verdict=verdict, evidence_recorded=recorded, wealth=self.wealth)

    def _has_to_watch(self, observation: Observation) -> bool:
        scripted = self.outcomes.get(observation.stage.weight, [])
        return observation.mode is ObserveMode.WATCH and StageOutcome.BREACH not in scripted[:1]

    def _is_overtaken(self, observation: Observation) -> bool:
        """Whether a later judge of the stage was asked: then this one is being cancelled."""
        weight = observation.stage.weight
        return next(one for one in reversed(self.asked) if one.stage.weight == weight) is not observation


class ToldTraffic:
    """A `TrafficObserver` that says what it is told; None, as long as it is told nothing.

    `lacks` holds selectors of business gates, with what is missing of them, or why they are refused.
    """

    told: ObservedTraffic | None = None
    asked = 0

    def __init__(self) -> None:
        self.lacks: dict[str, Missing | QueryRefused] = {}

    async def observe(self, service: Service, *, stable_revision: int) -> ObservedTraffic | None:
        self.asked += 1
        return self.told

    async def missing(self, service: Service, template: str, *, stable_revision: int) -> Missing | None:
        lack = self.lacks.get(template)
        if isinstance(lack, QueryRefused):
            raise lack
        return lack


class Listener:
    """A notification channel that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Notification] = []

    async def deliver(self, notification: Notification) -> None:
        self.heard.append(notification)


class CountingMesh(MemoryMesh):
    """Counts the attempts, also those that fail."""

    attempts = 0

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        self.attempts += 1
        return await super().write(service, split, fence, expected=expected)
