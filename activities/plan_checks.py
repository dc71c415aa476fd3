"""Whether a plan can be carried out on the traffic and the instances that there are."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from activities.traffic import Missing, TrafficObserver
from weightshift.analysis.sizing import (
    ObservedTraffic,
    PoolCapacity,
    overload_problems,
    sample_size_problems,
    slow_gates,
)
from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import InstanceState
from weightshift.contracts.plan import Gate, Metric, Plan
from weightshift.contracts.release import ReleaseRequest
from weightshift.contracts.target import Targets
from weightshift.errors import InvalidPlan, QueryRefused


def pool_capacity(states: Sequence[InstanceState]) -> PoolCapacity | None:
    """Return what the live instances can carry; None when a pool has none. Pure."""
    carried = {
        cohort: sum(
            state.report.servable_capacity
            for state in states
            if state.report.cohort is cohort and not state.lost and not state.report.draining
        )
        for cohort in Cohort
    }
    stable, canary = carried[Cohort.STABLE], carried[Cohort.CANARY]
    return PoolCapacity(stable=stable, canary=canary) if stable > 0 and canary > 0 else None


class PlanChecks:
    """Refuses what cannot work, and remarks on what may not."""

    def __init__(
        self, *, traffic: TrafficObserver, highest_load: float, channels: Collection[str] = ()
    ) -> None:
        """Take how many times stable's present load a unit of the canary's capacity may carry at most.

        `channels` are the names that a plan's `notify` may use.
        """
        self._channels = channels
        self._traffic = traffic
        self._highest_load = highest_load

    async def remarks(
        self, request: ReleaseRequest, targets: Targets, states: Sequence[InstanceState]
    ) -> tuple[str, ...]:
        """Return what is worth telling about a plan that may start.

        Raises `InvalidPlan` with every problem at once. What nobody knows is no problem.
        """
        problems = unknown_channels(request.plan, self._channels)
        remarks: tuple[str, ...] = ()
        if targets.stable is not None and _is_judged(request.plan):
            found, remarks = await self._compare(request, targets.stable.revision, states)
            problems += found
        if problems:
            raise InvalidPlan("; ".join(problems))
        return remarks

    async def _compare(
        self, request: ReleaseRequest, stable_revision: int, states: Sequence[InstanceState]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Compare a plan with the traffic and the instances; returns problems, and remarks."""
        traffic, findings = await asyncio.gather(
            self._traffic.observe(request.service, stable_revision=stable_revision),
            self._ask_business(request, stable_revision),
        )
        if traffic is None:
            refused = [one.text for one in findings if not one.needs_traffic]
            return refused, ("traffic: none was measured lately, so the plan was not compared with it",)
        capacity = pool_capacity(states)
        problems = sample_size_problems(request.plan, traffic)
        if capacity is not None:
            problems += overload_problems(request.plan, traffic, capacity, highest_load=self._highest_load)
        problems += [one.text for one in findings if one.is_fatal]
        remarks = [one.text for one in findings if not one.is_fatal]
        return problems, (_describe(traffic), *slow_gates(request.plan, traffic), *remarks)

    async def _ask_business(self, request: ReleaseRequest, stable_revision: int) -> list["_Finding"]:
        """Ask for what business gates count on stable; returns what is refused, and what there is not."""

        async def ask(gate: Gate, part: str, template: str) -> _Finding | None:
            try:
                lack = await self._traffic.missing(request.service, template, stable_revision=stable_revision)
            except QueryRefused as refusal:
                text = f"gate {gate.name}: mend `{part}`, {template}: {refusal}"
                return _Finding(text, is_fatal=True, needs_traffic=False)
            if lack is None:
                return None
            is_fatal = gate.ratio is not None and (lack is Missing.COUNTER or part == "total")
            return _Finding(_lacking(gate, part, template, lack), is_fatal=is_fatal, needs_traffic=True)

        parts = [
            ask(gate, part, template)
            for gate in business_gates(request.plan)
            for part, template in (("bad", gate.bad), ("total", gate.total))
        ]
        return [finding for finding in await asyncio.gather(*parts) if finding is not None]


@dataclass(frozen=True)
class _Finding:
    """What is wrong with a business gate, in words; fatal where it could never be judged."""

    text: str
    is_fatal: bool
    needs_traffic: bool


def business_gates(plan: Plan) -> list[Gate]:
    """Return the business gates of the stages that are judged, each once. Pure."""
    found = {
        gate.name: gate
        for stage in plan.resolved_stages()
        for gate in stage.gates
        if stage.max_window and gate.metric is Metric.BUSINESS
    }
    return list(found.values())


def _lacking(gate: Gate, part: str, template: str, lack: Missing) -> str:
    if lack is Missing.COUNTER:
        return (
            f"gate {gate.name}: Prometheus knows no such counter as in `{part}`, {template}; mend its name, "
            "or export it as 0 before the first event"
        )
    return f"gate {gate.name}: `{part}` finds nothing on stable, {template}; see that its labels are right"


def unknown_channels(plan: Plan, known: Collection[str]) -> list[str]:
    """Return a problem for each channel of the plan that is none of the known ones. Pure."""
    names = ", ".join(sorted(known)) or "none"
    return [
        f"notify: there is no channel {name}; the worker's settings have {names}"
        for name in plan.notify
        if name not in known
    ]


def _is_judged(plan: Plan) -> bool:
    """Whether anything is judged: the way back after a release is not, and waits for no comparison."""
    return any(stage.max_window for stage in plan.resolved_stages())


def _describe(traffic: ObservedTraffic) -> str:
    return (
        f"traffic: about {traffic.requests_per_second:.3g} requests/s on stable, "
        f"{traffic.error_fraction:.2%} of them failed"
    )
