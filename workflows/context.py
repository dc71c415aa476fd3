"""One release in progress: its state, the intents that messages leave, and how it calls activities."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from activities.options import Call, waits_queue
    from weightshift.contracts.commands import Admittance, CarriedWealth, InstanceRef
    from weightshift.contracts.identity import Cohort, Fence
    from weightshift.contracts.release import (
        Outcome,
        Parachute,
        ReleaseRequest,
        ReleaseStatus,
        RollbackRequest,
    )
    from workflows.rollback import Position, way_back
    from workflows.story import ReleaseStory

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")

_LONGEST_LOOK = timedelta(seconds=2)
_ASKED_AGAIN = "an unanswered question is asked again as an activity"


class Interrupted(Exception):
    """A rollback was requested; what was being waited for no longer matters."""


class StageBreached(Exception):
    """The canary must not go on; the message says why."""


class ReleaseContext(ReleaseStory):
    """What a release knows, changed only by its own main loop; messages only set intents."""

    def __init__(self, request: ReleaseRequest) -> None:
        super().__init__(request)
        self.admitted: Admittance | None = None
        self.canary_revision = 0
        self.wealth: dict[str, CarriedWealth] = {}
        self.had_traffic = False
        self.pods_held = False
        self.kept_pods: tuple[str, ...] = ()
        self.rollback_request: RollbackRequest | None = None
        self.rollback_asked_at: datetime | None = None
        self.rollback_seconds: float | None = None
        self.traffic_is_back = False
        self.unpublishable: str | None = None
        self.left_on_stable: str | None = None
        self.overtaken: set[Cohort] = set()
        self.interruptible = True
        self.promote_requested = False
        self.breach: str | None = None
        self.granted: tuple[InstanceRef, ...] = ()
        self.notices: list[workflow.ActivityHandle[None]] = []
        self._sequence = 0

    # --- identity of commands -------------------------------------------------------------------

    def next_fence(self) -> Fence:
        """Allocate the fence of the next command: newer than every one before it."""
        self._sequence += 1
        return Fence(epoch=self.admittance.epoch, sequence=self._sequence)

    def operation_id(self, fence: Fence) -> str:
        """Name a command for ever, so that its repeat is recognised."""
        return f"{self.request.release_id}:{fence.sequence}"

    @property
    def admittance(self) -> Admittance:
        """What admission answered; a programming error before it did."""
        if self.admitted is None:
            raise RuntimeError("the release is not admitted yet")
        return self.admitted

    def status(self) -> ReleaseStatus:
        """Return where the release is, and under a parachute, which instances hold the way back."""
        status = super().status()
        if self.position is not Position.PARACHUTE_UP:
            return status
        parachute = Parachute(
            revision=self.canary_revision,
            instances=tuple(one.instance_id for one in self.admittance.canary),
            otherwise=way_back(Position.RETIRING, self.reload_seconds),
        )
        return status.model_copy(update={"parachute": parachute})

    # --- waiting --------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether a rollback was requested and may take effect now."""
        return self.interruptible and self.rollback_request is not None

    @property
    def breached(self) -> bool:
        """Whether a judge in the background found a breach that may take effect now."""
        return self.interruptible and self.breach is not None

    @property
    def is_final(self) -> bool:
        """Whether the release went through and nothing can turn it back any more."""
        return not self.interruptible and self.outcome is Outcome.PROMOTED

    def checkpoint(self) -> None:
        """Raise when a rollback or a cancellation is due, or a judge in the background found a breach.

        A cancellation can be swallowed by an activity that completes at the same moment, so it is asked
        for after every step instead of being trusted to arrive.
        """
        if self.interrupted:
            raise Interrupted
        if self.breached:
            raise StageBreached(self.breach)
        if self.interruptible and workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError

    async def wait(
        self, condition: Callable[[], bool], *, timeout: timedelta | None = None, summary: str | None = None
    ) -> bool:
        """Wait for a condition; returns False when the time was up first. Raises what `checkpoint` does."""
        try:
            await workflow.wait_condition(
                lambda: condition() or self.interrupted or self.breached,
                timeout=timeout,
                timeout_summary=summary,
            )
        except TimeoutError:
            self.checkpoint()
            return False
        self.checkpoint()
        return True

    # --- activities -----------------------------------------------------------------------------

    def start(
        self,
        call: Call[Argument, Answer],
        argument: Argument,
        *,
        summary: str,
        give_up_after: timedelta | None = None,
    ) -> "workflow.ActivityHandle[Answer]":
        """Start an activity without waiting for it; its failure is kept until somebody asks."""
        handle: workflow.ActivityHandle[Answer] = workflow.start_activity(
            call.name,
            argument,
            result_type=call.answer,
            task_queue=waits_queue(workflow.info().task_queue) if call.waits else None,
            start_to_close_timeout=call.longest_attempt,
            schedule_to_close_timeout=call.give_up_after if give_up_after is None else give_up_after,
            heartbeat_timeout=call.heartbeat,
            retry_policy=call.retry,
            summary=summary,
        )
        handle.add_done_callback(_take_note)
        return handle

    async def execute(
        self,
        call: Call[Argument, Answer],
        argument: Argument,
        *,
        summary: str,
        give_up_after: timedelta | None = None,
    ) -> Answer:
        """Run an activity to its end, or to an interruption.

        An interrupted long wait is cancelled. A short write is left to end by itself: whatever it still
        does is overruled by its fence.
        """
        handle = self.start(call, argument, summary=summary, give_up_after=give_up_after)
        try:
            await self.wait(handle.done)
        except (Interrupted, StageBreached, asyncio.CancelledError):
            if call.heartbeat is not None:
                handle.cancel()
            raise
        return handle.result()

    async def look_up(self, call: Call[Argument, Answer], argument: Argument, *, summary: str) -> Answer:
        """Run a short, harmless question inside the workflow's worker; costs one event.

        Messages wait while it runs, so one that is not answered at once is asked again as an activity, which
        a rollback does interrupt.
        """
        try:
            answer = await self._ask_once(call, argument, summary=summary)
        except FailureError as error:
            self.checkpoint()
            # A local activity's own error comes as it is, a time-out wrapped.
            is_final = isinstance(error, ApplicationError) and error.non_retryable
            if is_final or not workflow.patched(_ASKED_AGAIN):
                raise
            return await self.execute(call, argument, summary=summary)
        self.checkpoint()
        return answer

    async def glance(
        self, call: Call[Argument, Answer], argument: Argument, *, summary: str
    ) -> Answer | None:
        """Ask a short, harmless question once; None where it is not answered at once."""
        try:
            return await self._ask_once(call, argument, summary=summary)
        except (FailureError, asyncio.CancelledError):
            return None  # `checkpoint` still sees a cancellation

    async def _ask_once(self, call: Call[Argument, Answer], argument: Argument, *, summary: str) -> Answer:
        answer: Answer = await workflow.execute_local_activity(
            call.name,
            argument,
            result_type=call.answer,
            start_to_close_timeout=_LONGEST_LOOK,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=summary,
        )
        return answer

    async def execute_to_the_end(
        self, call: Call[Argument, Answer], argument: Argument, *, summary: str
    ) -> Answer:
        """Run an activity that must not be given up, not even when the release is cancelled."""
        handle = self.start(call, argument, summary=summary)
        while not handle.done():
            try:
                await workflow.wait_condition(handle.done)
            except asyncio.CancelledError:
                continue  # `checkpoint` still sees the cancellation
        return handle.result()


async def wait_out(duration: timedelta) -> None:
    """Let this much time pass, also when the release is cancelled meanwhile."""
    until = workflow.now() + duration
    while (left := until - workflow.now()) > timedelta():
        try:
            await workflow.sleep(left)
        except asyncio.CancelledError:
            continue  # `checkpoint` still sees the cancellation


async def handlers_finished() -> None:
    """Wait until every caller of an update has an answer, also when the release is cancelled meanwhile."""
    while not workflow.all_handlers_finished():
        try:
            await workflow.wait_condition(workflow.all_handlers_finished)
        except asyncio.CancelledError:
            continue


def _take_note(handle: "asyncio.Task[Any]") -> None:
    """Look at a left-behind activity's failure, so that it is not reported as never retrieved."""
    if not handle.cancelled():
        handle.exception()
