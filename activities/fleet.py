"""Activities that wait for the fleet: what its instances report, not what they were told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.failures import application_errors
from activities.options import CHECK_CAPACITY, DOWNLOAD, VERIFY, WARM_UP
from weightshift.cluster.base import NO_CLUSTER, Cluster
from weightshift.contracts.cluster import Pool
from weightshift.contracts.commands import (
    Capacity,
    CapacityCheck,
    FleetProgress,
    FleetWait,
    InstanceProgress,
    InstanceRef,
    LostInstances,
)
from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import CandidatePhase, InstanceError, InstanceState
from weightshift.readiness import serves, unready
from weightshift.registry.base import Registry

_NO_CAPACITY = 1e-9


@dataclass(frozen=True)
class Assessment:
    """How a wait stands: who is done, who is awaited, and who cannot succeed."""

    done: tuple[InstanceProgress, ...]
    awaited: tuple[str, ...]
    failed: tuple[tuple[str, InstanceError], ...]


def assess(wait: FleetWait, states: Sequence[InstanceState]) -> Assessment:
    """Compare what instances report with what is waited for. Pure."""
    by_id = {state.report.instance_id: state for state in states}
    done, awaited, failed, gone = [], [], [], []
    for reference in _waited_for(wait, states):
        state = by_id.get(reference.instance_id)
        error = _permanent_error(state, wait.revision)
        if wait.lost is not LostInstances.AWAITED and _is_gone(state):
            gone.append(reference)
        elif state is not None and not state.lost and _has_passed(state, wait):
            done.append(_progress(reference, state, wait.revision))
        elif error is not None:
            failed.append((reference.instance_id, error))
        elif not (wait.tolerate_lost and _is_gone(state)):
            awaited.append(_with_last_error(reference, state, wait.revision))
    if gone:
        successors, lacking = _in_place_of(gone, wait, states)
        done, awaited = [*done, *successors], [*awaited, *lacking]
    return Assessment(tuple(done), tuple(awaited), tuple(failed))


def _is_gone(state: InstanceState | None) -> bool:
    return state is None or state.lost or state.report.draining


def _in_place_of(
    gone: Sequence[InstanceRef], wait: FleetWait, states: Sequence[InstanceState]
) -> tuple[list[InstanceProgress], list[str]]:
    """Return who took the place of instances that are gone, and who is awaited while they carry too little.

    On Kubernetes a pod that is evicted comes back under another name.
    """
    by_id = {state.report.instance_id: state for state in states}
    live = live_instances(states, wait.cohort)
    awaited = [f"what takes the place of {one.instance_id}, which is lost" for one in gone]
    if wait.lost is LostInstances.COVERED:
        ready = sum(one.capacity for one in live if by_id[one.instance_id].report.ready)
        return [], [] if wait.capacity - ready < _NO_CAPACITY else awaited
    expected = {one.instance_id for one in wait.instances}
    newcomers = [one for one in live if one.instance_id not in expected]
    passed = [one for one in newcomers if _has_passed(by_id[one.instance_id], wait)]
    done = [_progress(one, by_id[one.instance_id], wait.revision) for one in passed]
    if sum(one.capacity for one in gone) - sum(one.capacity for one in passed) < _NO_CAPACITY:
        return done, []
    behind = [one for one in newcomers if one not in passed]
    late = [_with_last_error(one, by_id[one.instance_id], wait.revision) for one in behind]
    return done, [*awaited, *late]


def _waited_for(wait: FleetWait, states: Sequence[InstanceState]) -> tuple[InstanceRef, ...]:
    """Return the wait's instances; where all of them may be lost and are, those that took their place.

    A way back would wait without end for pods that were replaced one by one.
    """
    live = {state.report.instance_id for state in states if not _is_gone(state)}
    if wait.tolerate_lost and not any(one.instance_id in live for one in wait.instances):
        return live_instances(states, wait.cohort)
    return wait.instances


def _with_last_error(reference: InstanceRef, state: InstanceState | None, revision: int) -> str:
    """Name an awaited instance, with what went wrong on it last, if anything did."""
    candidate = state.report.candidate if state else None
    if candidate is None or candidate.revision != revision:
        return reference.instance_id
    # An engine's adapter may know no error but the current one.
    error = candidate.error or candidate.last_error
    return f"{reference.instance_id} ({error.message})" if error else reference.instance_id


def _permanent_error(state: InstanceState | None, revision: int) -> InstanceError | None:
    candidate = state.report.candidate if state else None
    if candidate is None or candidate.revision != revision or candidate.error is None:
        return None
    return candidate.error if candidate.error.permanent else None


def _has_passed(state: InstanceState, wait: FleetWait) -> bool:
    report = state.report
    if report.actual is not None and report.actual.revision == wait.revision:
        return report.ready or wait.phase is not CandidatePhase.DRY_RUNNING
    candidate = report.candidate
    return (
        wait.phase is not CandidatePhase.DRY_RUNNING
        and candidate is not None
        and candidate.revision == wait.revision
        and candidate.has_passed(wait.phase)
    )


def _progress(reference: InstanceRef, state: InstanceState, revision: int) -> InstanceProgress:
    candidate = state.report.candidate
    if candidate is None or candidate.revision != revision:
        return InstanceProgress(instance=reference)
    return InstanceProgress(
        instance=reference,
        bytes_done=candidate.bytes_done,
        phase_seconds=candidate.phase_seconds,
        peak_memory_bytes=candidate.peak_memory_bytes,
    )


def check_readiness(check: CapacityCheck, states: Sequence[InstanceState]) -> Capacity:
    """Split the instances into those ready at the revision and those not, with the reason. Pure."""
    by_id = {state.report.instance_id: state for state in states}
    ready, missing = [], []
    for reference in check.instances:
        problem = unready(reference.instance_id, by_id.get(reference.instance_id), check.revision)
        if problem is None:
            ready.append(reference)
        else:
            missing.append(problem)
    all_serve = all(serves(by_id.get(one.instance_id), check.revision) for one in check.instances)
    return Capacity(ready=tuple(ready), missing=tuple(missing), all_serve=all_serve)


def live_instances(states: Sequence[InstanceState], cohort: Cohort) -> tuple[InstanceRef, ...]:
    """Return the instances of a cohort that report, with what each can carry; not those that leave. Pure."""
    return tuple(
        InstanceRef(
            instance_id=state.report.instance_id,
            boot_id=state.report.boot_id,
            capacity=state.report.servable_capacity,
        )
        for state in states
        if state.report.cohort is cohort and not state.lost and not state.report.draining
    )


def with_pool(capacity: Capacity, pool: Pool | None, *, instances: int) -> Capacity:
    """Add what the cluster knows; its word that pods are missing counts as much as theirs. Pure."""
    if pool is None:
        return capacity
    shortfall = pool.shortfall(instances)
    missing = capacity.missing if shortfall is None else (*capacity.missing, shortfall)
    return capacity.model_copy(update={"missing": missing, "pool": pool})


class FleetActivities:
    """Waits on instance reports."""

    def __init__(
        self, *, registry: Registry, lost_after: timedelta, poll: timedelta, cluster: Cluster = NO_CLUSTER
    ) -> None:
        self._registry = registry
        self._cluster = cluster
        self._lost_after = lost_after
        self._poll = poll.total_seconds()

    @activity.defn(name=DOWNLOAD.name)
    async def download(self, wait: FleetWait) -> FleetProgress:
        """Wait until every instance has the artifact's bytes in its cache."""
        return await self._until_passed(wait)

    @activity.defn(name=VERIFY.name)
    async def verify(self, wait: FleetWait) -> FleetProgress:
        """Wait until every instance has checked digests, schema and architecture."""
        return await self._until_passed(wait)

    @activity.defn(name=WARM_UP.name)
    async def warm_up(self, wait: FleetWait) -> FleetProgress:
        """Wait until every instance has loaded and dry-run the artifact and serves it."""
        return await self._until_passed(wait)

    async def _until_passed(self, wait: FleetWait) -> FleetProgress:
        """Bounded by the activity's timeouts. Raises the candidate's own error, which is final."""
        while True:
            with application_errors():
                states = await self._registry.instances(wait.service, lost_after=self._lost_after)
            assessment = assess(wait, states)
            activity.heartbeat("waiting for " + ", ".join(assessment.awaited))
            if assessment.failed:
                instance_id, error = assessment.failed[0]
                raise ApplicationError(f"{instance_id}: {error.message}", type=error.type, non_retryable=True)
            if not assessment.awaited and (assessment.done or wait.lost is LostInstances.COVERED):
                return FleetProgress(instances=assessment.done)
            await asyncio.sleep(self._poll)

    @activity.defn(name=CHECK_CAPACITY.name)
    async def check_capacity(self, check: CapacityCheck) -> Capacity:
        """Say which instances could take traffic now."""
        with application_errors():
            states = await self._registry.instances(check.service, lost_after=self._lost_after)
            pool = await self._cluster.pool(check.service, check.cohort)
        return with_pool(check_readiness(check, states), pool, instances=len(check.instances))
