"""Brings what is served to what is desired: one loop, one candidate at a time, the latest target wins."""

import asyncio
import logging
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from functools import partial
from itertools import count

from runtime.backoff import Backoff
from runtime.candidate import CandidateTracker
from runtime.candidate_board import CandidateBoard
from runtime.compatibility import runtime_build
from runtime.device_health import is_out_of_memory
from runtime.generation_holder import Generation, GenerationHolder, LoadedModel
from runtime.in_place_swap import InPlaceSwapper
from runtime.load_wait import wait_for_load
from runtime.model_supply import ModelSupply
from runtime.priority import yield_to_requests
from runtime.registry_client import Reporter, TargetReader
from runtime.rollout_metrics import RolloutMetrics
from runtime.settings import RuntimeSettings, StartPolicy, SwapMode
from weightshift.contracts.instance import CandidateProgress
from weightshift.contracts.target import Target
from weightshift.errors import AuthorisationInvalid, GrantWithdrawn, OutOfMemory, RevisionConflict, Superseded

_logger = logging.getLogger(__name__)


class Reconciler:
    """The only writer of the serving generation. Belongs to the event loop's thread.

    `reporter` is woken when what serves has changed or an attempt has failed; what the `board` shows is
    progress.
    """

    def __init__(
        self,
        *,
        settings: RuntimeSettings,
        holder: GenerationHolder,
        supply: ModelSupply,
        board: CandidateBoard,
        metrics: RolloutMetrics,
        swapper: InPlaceSwapper,
        reader: TargetReader,
        reporter: Reporter,
    ) -> None:
        self._settings = settings
        self._holder = holder
        self._supply = supply
        self._state = supply.target_state
        self._metrics = metrics
        self._reporter = reporter
        self._swapper = swapper
        self._reader = reader
        self._thread = futures.ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="loader", initializer=yield_to_requests
        )
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._reached = asyncio.Event()
        self._desired: Target | None = None
        self._refused: Target | None = None
        self._board = board
        self._loading: futures.Future[LoadedModel] | None = None
        self._served: set[str] = set()
        self._is_closing = False
        self._is_restoring = True
        self.is_settled = False

    @property
    def desired_revision(self) -> int:
        """The newest accepted revision; 0 before the first."""
        return self._desired.revision if self._desired else 0

    @property
    def progress(self) -> CandidateProgress | None:
        """How far the candidate is that a report tells of."""
        return self._board.shown

    def registry_answered(self, is_reached: bool) -> None:
        """The registry was asked, with or without success."""
        self._answered.set()
        if is_reached:
            self._reached.set()

    async def accept(self, target: Target) -> None:
        """Take the registry's target; one that contradicts an accepted one is counted and ignored."""
        try:
            # What is known already is on the disk already, and costs requests no thread.
            is_known = target == self._state.accepted
            changed = not is_known and await asyncio.to_thread(self._state.accept, target)
        except RevisionConflict as error:
            self._metrics.conflicts.inc()
            _logger.error("target refused: %s", error)  # noqa: TRY400 - the message says all
            return
        except AuthorisationInvalid as error:
            self._refuse(target, error)
            return
        accepted = self._state.accepted
        if accepted is not None and (changed or accepted.revision > self.desired_revision):
            self._desired = accepted
            self._board.accept()
            if not self._is_restoring:
                self._holder.aim(accepted)
            self._wake.set()
            self._reporter.progressed()

    async def retry(self) -> None:
        """Re-read the target, and try a refused or waiting candidate again now."""
        await self._refresh()
        self._refused = None
        self._wake.set()

    async def run(self) -> None:
        """Restore what served before, hear the registry, then follow its targets for ever."""
        await self._start()
        while True:
            self._settle()
            await self._wake.wait()
            self._wake.clear()
            target = self._desired
            if target is None or self._serves(target) or target == self._refused:
                continue
            await self._bring_up(target)

    async def close(self, deadline: float) -> bool:
        """Stop a candidate at its next step; returns whether it has stopped within `deadline` seconds."""
        self._is_closing = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._loading is None:
            return True
        _, running = await asyncio.to_thread(futures.wait, [self._loading], deadline)
        return not running

    async def _start(self) -> None:
        """Serve the last trusted target and hear the registry, in the order that the settings ask for."""
        cannot_swap = self._settings.swap_mode is SwapMode.REFUSE
        if self._settings.start_policy is StartPolicy.WAIT:
            await self._reached.wait()
            await self._restore(None)
            return
        if cannot_swap:
            # What is loaded first stays.
            await self._hear_registry()
        is_told = cannot_swap and self._desired is not None
        await self._restore(None if is_told else self._state.trusted)
        await self._hear_registry()

    async def _hear_registry(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.start_wait):
                await self._answered.wait()

    async def _restore(self, trusted: Target | None) -> None:
        """Serve a target from the cache, if there is one, then aim at what was accepted last."""
        accepted = self._state.accepted
        if accepted is not None:
            self._holder.aim(accepted)
        if trusted is not None:
            self._holder.aim(trusted)
            await self._attempt(trusted, 1, superseded=lambda: False)
        self._is_restoring = False
        self._desired = self._desired or accepted
        if self._desired is not None:
            self._holder.aim(self._desired)
            self._wake.set()

    async def _bring_up(self, target: Target) -> None:
        """Try a target until it serves, is refused for good, or a newer one arrives."""
        backoff = Backoff(initial=self._settings.retry_initial, maximum=self._settings.retry_maximum)
        for attempt in count(1):
            is_over = await self._attempt(target, attempt, superseded=partial(self._is_superseded, target))
            self._settle()
            if is_over:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_delay()):
                    await self._wake.wait()
            if self._is_superseded(target):
                return
            self._wake.clear()

    def _refuse(self, target: Target, error: AuthorisationInvalid) -> None:
        """Report a target that is not followed, so that whoever published it does not wait for it."""
        self._metrics.unauthorised.inc()
        _logger.error("target refused: %s", error)
        self._board.refuse(target, error)
        self._reporter.wake()

    async def _attempt(self, target: Target, number: int, *, superseded: Callable[[], bool]) -> bool:
        """Make one attempt; returns whether there is nothing left to try for this target."""
        tracker = self._board.begin(target, number, superseded=lambda: self._is_closing or superseded())
        # Asked before: what ends while the attempt fails makes room for the next one.
        had_retired = self._holder.has_retired
        try:
            await self._install(target, tracker)
        except Exception as error:
            # Memory comes back once the last requests of an earlier generation have ended. What served before
            # may be a way back: it waits for no long stream, and is tried until it has memory again, also
            # where a release that tries the artifact once more is told that it has failed.
            lacks_memory = isinstance(error, OutOfMemory) or is_out_of_memory(error)
            keeps_trying = lacks_memory and target.manifest_sha256 in self._served | self._state.served
            if keeps_trying:
                self._holder.hurry_oldest()
            failure = tracker.fail(error, may_pass=lacks_memory and had_retired)
            self._reporter.wake()
            _logger.warning(
                "revision %d failed: %s", target.revision, failure.message, exc_info=not failure.permanent
            )
            is_over = failure.permanent and not keeps_trying
            if is_over:
                self._refused = target
            return is_over
        return True

    async def _install(self, target: Target, tracker: CandidateTracker) -> None:
        await self._await_grant(target)
        generation_of = partial(Generation, target=target, runtime_build=runtime_build())
        loaded = self._holder.claim(target.manifest_sha256)
        if loaded is not None:
            tracker.commit()
        else:
            current = self._holder.current
            serving = current.loaded if current else None
            prepare = partial(self._supply.preparer.prepare, target, tracker, serving=serving)
            self._loading = self._thread.submit(prepare)
            loaded = await wait_for_load(
                self._loading,
                wake=self._wake,
                is_pointless=partial(self._is_overtaken, target),
                drop=lambda late: self._holder.discard(generation_of(loaded=late)),
            )
            tracker.commit()
            await self._refresh()
        generation = generation_of(loaded=loaded)
        if not await self._may_swap(target):
            self._holder.discard(generation)
            raise GrantWithdrawn
        await self._publish(generation)
        self._metrics.installed(generation)
        self._served.add(target.manifest_sha256)
        tracker.install()
        self._reporter.wake()
        await asyncio.to_thread(
            self._supply.remember, target, self._holder.resident, stand_back=tracker.stand_back
        )

    async def _publish(self, candidate: Generation) -> None:
        """Let a candidate serve. Raises `Superseded`, and what keeps a staged one from taking its place."""
        if not candidate.loaded.is_staged:
            if not self._holder.install(candidate):
                raise Superseded
            return
        try:
            await self._swapper.install(candidate)
        except BaseException:
            self._holder.discard(candidate)
            raise

    async def _await_grant(self, target: Target) -> None:
        """Wait until this instance's wave has come. Raises `Superseded`."""
        while not await self._may_swap(target):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat):
                    await self._wake.wait()
            self._wake.clear()
            if self._is_superseded(target):
                # For the loop that follows targets, which has not seen the newer one yet.
                self._wake.set()
                raise Superseded

    async def _may_swap(self, target: Target) -> bool:
        """Whether nothing forbids the swap; an instance without traffic yet needs no grant to start."""
        is_swap = self.is_settled and self._holder.current is not None
        return not (target.requires_grant and is_swap) or await self._reader.has_grant(target)

    async def _refresh(self) -> None:
        if (target := await self._reader.target()) is not None:
            await self.accept(target)

    def _is_overtaken(self, target: Target) -> bool:
        """Whether what is wanted instead needs no load: it waits for none that hangs."""
        desired = self._desired
        return self._is_superseded(target) and desired is not None and self._holder.holds(desired)

    def _is_superseded(self, target: Target) -> bool:
        return self.desired_revision > target.revision

    def _serves(self, target: Target) -> bool:
        current = self._holder.current
        return current is not None and current.revision >= target.revision

    def _settle(self) -> None:
        """A starting instance is ready only once it has caught up, or has shown that it cannot."""
        if self.is_settled:
            return
        desired, progress = self._desired, self._board.latest
        failed_revision = progress.revision if progress and progress.error else 0
        if desired is None or self._serves(desired) or desired.revision == failed_revision:
            self.is_settled = True
            self._reporter.wake()
