"""One stage under observation: one judging activity, and a durable window that it cannot shorten."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import exceptions, workflow

with workflow.unsafe.imports_passed_through():
    from activities.options import OBSERVE
    from weightshift.contracts.commands import Observation, Observed, ObserveMode
    from weightshift.contracts.notification import NotificationEvent
    from weightshift.contracts.plan import OnInconclusive, ResolvedStage
    from weightshift.contracts.verdict import StageOutcome, StageVerdict
    from weightshift.way_back import is_going_back
    from workflows.context import ReleaseContext, StageBreached
    from workflows.notices import notify


_JUDGE_GRACE = timedelta(minutes=2)
_CLOCK_STOPPED = "a pause during a judgement moves its deadline"
_WATCHED_FOR_PEOPLE = "a stage without a window is judged while people are waited for"
_NO_JUDGEMENT = StageVerdict(
    outcome=StageOutcome.INCONCLUSIVE, reason="no judgement arrived in time: is a worker running?"
)


async def observe_stage(context: ReleaseContext, stage: ResolvedStage) -> "StageObservation":
    """Return when the stage was judged healthy, its window is over and nothing holds it.

    The observation can go on with `watch`. Raises `StageBreached`, and `Interrupted` when a rollback is
    requested.
    """
    observation = StageObservation(context, stage)
    if stage.max_window:
        await observation.run()
    else:
        context.tell(f"{stage.weight} %: not judged, its window has no length")
    return observation


class StageObservation:
    """What one stage's observation needs to know between its judgements."""

    def __init__(self, context: ReleaseContext, stage: ResolvedStage) -> None:
        self._context = context
        self._stage = stage
        self._started_at = workflow.now()
        self._mode = ObserveMode.WINDOW
        self._paused_before = context.paused_for
        self._judged_by = stage.max_window
        # A repeated judgement starts again from the stage's start: it must not inherit its own evidence.
        self._wealth_before = context.wealth

    @property
    def is_judged(self) -> bool:
        """Whether the stage has a window at all."""
        return bool(self._stage.max_window)

    def watching(self) -> Observation:
        """Return what goes on judging a stage that has passed; only a breach ends it."""
        self._mode = ObserveMode.WATCH
        return self._observation().model_copy(update={"evidence": ()})

    async def watch(self, *, until: Callable[[], bool]) -> None:
        """Keep judging a stage that has passed, until the condition holds. Raises what `run` raises.

        One without a window is judged too: it lasts as long as people take. Going back is judged by nobody.
        """
        going_back = is_going_back(self._context.request.request_key)
        if not self.is_judged and (going_back or not workflow.patched(_WATCHED_FOR_PEOPLE)):
            await self._context.wait(until)
        while not until():
            self._mode = ObserveMode.WATCH
            observed = await self._judge(until=until)
            if observed is not None and observed.verdict.outcome is StageOutcome.BREACH:
                raise StageBreached(observed.verdict.reason)

    async def run(self) -> None:
        """Judge until the stage may be left. Raises `StageBreached`, `Interrupted`."""
        context = self._context
        try:
            while True:
                observed = await self._judge(until=self._intent_changed)
                if observed is not None and observed.verdict.outcome is StageOutcome.BREACH:
                    raise StageBreached(observed.verdict.reason)
                if context.promote_requested:
                    context.tell(f"the rest of the window at {self._stage.weight} % is skipped on request")
                    return
                if observed is not None and await self._may_advance(observed):
                    return
        finally:
            context.held = False

    async def _may_advance(self, observed: Observed) -> bool:
        """Decide what a judgement without a breach means: go on, go back (raises), or keep judging."""
        context, outcome = self._context, observed.verdict.outcome
        if context.paused:
            self._mode = ObserveMode.WATCH
            return False
        if outcome is StageOutcome.HEALTHY:
            await self._rest_of_the_window(until=lambda: context.promote_requested)
            return True
        if self._longest_window() > self._judged_by and workflow.patched(_CLOCK_STOPPED):
            self._mode = ObserveMode.WINDOW
            return False
        if context.request.plan.on_inconclusive is OnInconclusive.ROLLBACK:
            raise StageBreached(f"inconclusive: {observed.verdict.reason}")
        self._mode = ObserveMode.HOLD
        context.held = True
        held = f"held at {self._stage.weight} %: {observed.verdict.reason}"
        context.tell(held)
        notify(context, NotificationEvent.HOLD, held)
        return False

    async def _judge(self, *, until: Callable[[], bool]) -> Observed | None:
        """Run one judgement; None when `until` ended it.

        A judge waits for the window's end by itself; a timer holds back one that answers early. A judgement
        that never comes is bounded by the activity's own deadline, and is inconclusive.
        """
        context, weight = self._context, self._stage.weight
        observation = self._observation()
        handle = context.start(
            OBSERVE,
            observation,
            summary=f"judge {weight} % ({self._mode})",
            give_up_after=self._deadline() if self._mode is ObserveMode.WINDOW else None,
        )
        try:
            if not context.admittance.window_by_judge:
                await self._rest_of_the_window(until=lambda: handle.done() or until())
            await context.wait(lambda: handle.done() or until())
        finally:
            if not handle.done():
                handle.cancel()
        if not handle.done():
            self._mode = ObserveMode.WINDOW
            return None
        try:
            observed = handle.result()
        except exceptions.ActivityError as error:
            if not isinstance(error.cause, exceptions.TimeoutError):
                raise
            return self.keep(Observed(verdict=_NO_JUDGEMENT))
        if observed.evidence_recorded:
            context.recorded(observation.evidence)
        return self.keep(observed)

    def keep(self, observed: Observed) -> Observed:
        """Tell a judgement, and keep it as the latest."""
        self._context.verdict = observed.verdict
        # However the stage is left, `promote` included: what was gathered until now stays evidence.
        self._context.wealth = {**self._context.wealth, **observed.wealth}
        self._context.tell(
            f"{self._stage.weight} %: {observed.verdict.outcome}: {observed.verdict.reason}",
            verdict=observed.verdict.model_dump(mode="json"),
            stage={"weight": self._stage.weight, "started_at": self._started_at.isoformat()},
            curve=observed.curve.model_dump(mode="json"),
        )
        return observed

    def _deadline(self) -> timedelta:
        """Return how long to wait for a judgement that should have come by itself."""
        interval = self._context.request.plan.interval
        passed = workflow.now() - self._started_at
        longest = self._longest_window() + 2 * interval + _JUDGE_GRACE
        return max(longest - passed, interval)

    def _longest_window(self) -> timedelta:
        """Return how long the stage may last: its deadline's clock stands still while it is paused."""
        return self._stage.max_window + self._context.paused_for - self._paused_before

    def _intent_changed(self) -> bool:
        resumed = self._mode is ObserveMode.WATCH and not self._context.paused
        return self._context.promote_requested or resumed

    async def _rest_of_the_window(self, *, until: Callable[[], bool]) -> None:
        """Wait on a durable timer for what is left of the window, or for the condition."""
        left = self._started_at + self._stage.window - workflow.now()
        if left > timedelta():
            await self._context.wait(
                until, timeout=left, summary=f"observation window at {self._stage.weight} %"
            )

    def _observation(self) -> Observation:
        context = self._context
        stable = context.admittance.targets.stable
        self._judged_by = self._longest_window()
        return Observation(
            release_id=context.request.release_id,
            service=context.request.service,
            stage=self._stage.model_copy(update={"max_window": self._judged_by}),
            interval=context.request.plan.interval,
            started_at=self._started_at,
            canary_revision=context.canary_revision,
            stable_revision=stable.revision if stable else 0,
            canary=context.admittance.canary,
            traffic=context.traffic,
            wealth=self._wealth_before,
            mode=self._mode,
            evidence=context.evidence,
        )
