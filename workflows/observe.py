"""One stage under observation: a durable window beside one judging activity."""

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from activities.options import OBSERVE
    from weightshift.contracts.commands import Observation, Observed, ObserveMode
    from weightshift.contracts.plan import OnInconclusive, ResolvedStage
    from weightshift.contracts.verdict import StageOutcome, StageVerdict
    from workflows.context import ReleaseContext


_JUDGE_GRACE = timedelta(minutes=2)
_NO_JUDGEMENT = StageVerdict(
    outcome=StageOutcome.INCONCLUSIVE, reason="no judgement arrived in time: is a worker running?"
)


class StageBreached(Exception):
    """The canary must not go on; the message says why."""


async def observe_stage(context: ReleaseContext, stage: ResolvedStage) -> None:
    """Return when the stage was judged healthy, its window is over and nothing holds it.

    Raises `StageBreached`, and `Interrupted` when a rollback is requested.
    """
    if not stage.max_window:
        context.tell(f"{stage.weight} %: not judged, its window has no length")
        return
    await _StageObservation(context, stage).run()


class _StageObservation:
    """What one stage's observation needs to know between its judgements."""

    def __init__(self, context: ReleaseContext, stage: ResolvedStage) -> None:
        self._context = context
        self._stage = stage
        self._started_at = workflow.now()
        self._mode = ObserveMode.WINDOW
        self._paused_for = timedelta()

    async def run(self) -> None:
        context = self._context
        context.promote_requested = False
        # A repeated judgement starts again from the stage's start: it must not inherit its own evidence.
        wealth_before = context.wealth
        try:
            while True:
                context.wealth = wealth_before
                observed = await self._judge()
                if context.promote_requested:
                    context.tell(f"the rest of the window at {self._stage.weight} % is skipped on request")
                    return
                if observed is None:
                    continue
                if await self._may_advance(observed):
                    context.wealth = {**wealth_before, **observed.wealth}
                    return
        finally:
            context.held = False

    async def _may_advance(self, observed: Observed) -> bool:
        """Decide what a judgement means: go on, go back (raises), or keep judging in another mode."""
        context, outcome = self._context, observed.verdict.outcome
        if outcome is StageOutcome.BREACH:
            raise StageBreached(observed.verdict.reason)
        if context.paused:
            self._mode = ObserveMode.WATCH
            return False
        if outcome is StageOutcome.HEALTHY:
            await self._rest_of_the_window()
            return True
        if context.request.plan.on_inconclusive is OnInconclusive.ROLLBACK:
            raise StageBreached(f"inconclusive: {observed.verdict.reason}")
        self._mode = ObserveMode.HOLD
        context.held = True
        context.tell(f"held at {self._stage.weight} %: {observed.verdict.reason}")
        return False

    async def _judge(self) -> Observed | None:
        """Run one judgement; None when a message ended it, to look at the intents again.

        The judge itself knows the window and the longest window; the timer is there in case no judge does.
        """
        context, weight = self._context, self._stage.weight
        began = workflow.now()
        observation = self._observation()
        handle = context.start(OBSERVE, observation, summary=f"judge {weight} % ({self._mode})")
        try:
            in_time = await context.wait(
                lambda: handle.done() or self._intent_changed(),
                timeout=self._deadline() if self._mode is ObserveMode.WINDOW else None,
                summary=f"{weight} %: observed for {self._stage.window}, at most {self._stage.max_window}",
            )
        finally:
            if not handle.done():
                handle.cancel()
        if self._mode is ObserveMode.WATCH:
            self._paused_for += workflow.now() - began
        if not in_time:
            return self._keep(Observed(verdict=_NO_JUDGEMENT))
        if not handle.done():
            self._mode = ObserveMode.WINDOW
            return None
        observed = handle.result()
        if observed.evidence_recorded:
            context.recorded(observation.evidence)
        return self._keep(observed)

    def _keep(self, observed: Observed) -> Observed:
        self._context.verdict = observed.verdict
        self._context.tell(
            f"{self._stage.weight} %: {observed.verdict.outcome}: {observed.verdict.reason}",
            verdict=observed.verdict.model_dump(mode="json"),
        )
        return observed

    def _deadline(self) -> timedelta:
        """Return how long to wait for a judgement that should have come by itself."""
        interval = self._context.request.plan.interval
        passed = workflow.now() - self._started_at
        longest = self._stage.max_window + self._paused_for + 2 * interval + _JUDGE_GRACE
        return max(longest - passed, interval)

    def _intent_changed(self) -> bool:
        resumed = self._mode is ObserveMode.WATCH and not self._context.paused
        return self._context.promote_requested or resumed

    async def _rest_of_the_window(self) -> None:
        """Wait out what is left where the judge's clock runs ahead: a window is never cut short."""
        left = self._started_at + self._stage.window - workflow.now()
        if left > timedelta():
            await self._context.wait(
                lambda: self._context.promote_requested,
                timeout=left,
                summary=f"rest of the window at {self._stage.weight} %",
            )

    def _observation(self) -> Observation:
        context = self._context
        stable = context.admittance.targets.stable
        deadline = self._stage.max_window + self._paused_for
        return Observation(
            release_id=context.request.release_id,
            service=context.request.service,
            stage=self._stage.model_copy(update={"max_window": deadline}),
            interval=context.request.plan.interval,
            started_at=self._started_at,
            canary_revision=context.canary_revision,
            stable_revision=stable.revision if stable else 0,
            canary=context.admittance.canary,
            wealth=context.wealth,
            mode=self._mode,
            evidence=context.evidence,
        )
