"""One runtime instance: its parts, wired once, and what they say together."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

from runtime.admission import Admission
from runtime.backoff import Backoff
from runtime.candidate_board import CandidateBoard
from runtime.cleanup import CleanupWorker
from runtime.compatibility import device_model, runtime_build
from runtime.device_health import DeviceHealth
from runtime.execution import Executor
from runtime.generation_holder import Generation, GenerationHolder
from runtime.in_place_swap import InPlaceSwapper
from runtime.installed_architectures import use_architectures
from runtime.memory_use import MemoryUse, memory_use
from runtime.model_supply import ModelSupply, Tier
from runtime.pause import PauseGate
from runtime.process_metrics import ProcessMetrics
from runtime.reconciler import Reconciler
from runtime.registry_client import Reporter, TargetReader, TargetWatch
from runtime.rollout_metrics import RolloutMetrics
from runtime.sessions import Sessions
from runtime.settings import RuntimeSettings
from weightshift.artifacts.base import ObjectStore
from weightshift.contracts.instance import InstanceReport
from weightshift.registry.client import RegistryClient

_logger = logging.getLogger(__name__)
HURRIED_SECONDS = 1.0


class Instance:
    """Composition root of the process. Create it and use it on the event loop's thread."""

    def __init__(self, *, settings: RuntimeSettings, store: ObjectStore, client: RegistryClient) -> None:
        self.settings = settings
        use_architectures(settings.architectures)
        self._health = DeviceHealth()
        # First, because it may refuse the settings, and nothing must run then.
        self._supply = ModelSupply(settings=settings, store=store, health=self._health)
        self._boot_id = uuid.uuid4().hex
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._drain: asyncio.Task[bool] | None = None
        self._has_failed = False
        self._is_hurried = False
        self._memory: MemoryUse | None = None
        service, cohort = settings.service, settings.cohort
        self.metrics = RolloutMetrics(service=service, cohort=cohort)
        self.process = ProcessMetrics(registry=self.metrics.registry, service=service, cohort=cohort)
        self.admission = Admission()
        self.gate = PauseGate(limit=settings.max_queue, paused_for=self.metrics.pause.observe)
        retired: SimpleQueue[Generation | None] = SimpleQueue()
        self.holder = GenerationHolder(retire=retired.put)
        self._cleanup = self._create_cleanup(retired)
        self.executor = self._create_executor()
        self.sessions = Sessions(
            release=self.holder.release,
            health=self._health,
            limit=settings.max_sessions,
            deadline=settings.session_deadline,
        )
        self._reporter = Reporter(client=client, heartbeat=settings.heartbeat, report=self.current_report)
        self._reconciler = self._create_reconciler()
        self._watch = self._create_watch()

    @property
    def is_ready(self) -> bool:
        """Whether traffic may be sent here."""
        is_serving = self._reconciler.is_settled and self.holder.can_serve
        is_fit = not (self._health.is_lost or self._health.rests)
        return is_serving and is_fit and self._pause_overrun <= 0 and not self.admission.is_draining

    @property
    def queue_length(self) -> int:
        """Requests that wait for a batch or for the end of a pause."""
        return self.executor.queue_length + self.gate.waiting

    @property
    def is_live(self) -> bool:
        """Whether this process can still recover by itself; if not, it should be restarted.

        Safe from any thread: an event loop that has not turned for long is one reason, a swap in place
        that does not end another.
        """
        stall_limit = self.settings.stall_limit
        is_turning = time.monotonic() - self.process.turned_at < stall_limit
        is_moving = self._pause_overrun < stall_limit
        are_alive = self.executor.is_alive and self.sessions.is_alive
        return is_turning and is_moving and are_alive and not self._has_failed and not self._health.is_lost

    @property
    def _pause_overrun(self) -> float:
        """For how many seconds a pause has lasted too long; negative before that. Safe from any thread."""
        # A swap gives up at its limit and then puts the previous weights back, unless a model hangs.
        return self.gate.lasts - 2 * self.settings.pause_limit

    def start(self) -> None:
        """Begin to follow the registry and to report to it."""
        for name, run in (
            ("reconciler", self._reconciler.run),
            ("target watch", self._watch.run),
            ("reporter", self._reporter.run),
            ("watch of the event loop", self.process.watch_loop),
        ):
            self._tasks.append(asyncio.create_task(self._guard(name, run), name=name))

    def report(self) -> InstanceReport:
        """Return what this instance says of itself now; its memory is that of the last `current_report`."""
        current, memory = self.holder.current, self._memory
        return InstanceReport(
            instance_id=self.settings.instance_id,
            boot_id=self._boot_id,
            service=self.settings.service,
            cohort=self.settings.cohort,
            desired_revision=self._reconciler.desired_revision,
            actual=current.describe() if current else None,
            candidate=self._reconciler.progress,
            ready=self.is_ready,
            draining=self.admission.is_draining,
            runtime_build=runtime_build(),
            device=device_model(self.settings.device),
            insecure_unsigned=self._supply.allows_unsigned,
            feature_schema=current.loaded.feature_schema if current else "",
            memory_used_bytes=memory.used if memory else None,
            memory_limit_bytes=memory.limit if memory else None,
        )

    async def current_report(self) -> InstanceReport:
        """Return the report with the memory as it is now, read beside the event loop. Raises `OSError`."""
        await self._read_memory()
        return self.report()

    async def render_metrics(self) -> bytes:
        """Return the Prometheus exposition, gauges read now; requests go on meanwhile."""
        desired = self._reconciler.desired_revision
        current = self.holder.current
        self.metrics.expire()
        self.metrics.desired_revision.set(desired)
        self.metrics.target_mismatch.set(desired != (current.revision if current else 0))
        self.metrics.sessions_active.set(self.sessions.active)
        self.metrics.queue_length.set(self.queue_length)
        self.process.read(await self._read_memory(), self.holder.resident)
        return await asyncio.to_thread(self.metrics.render)

    def tiers(self) -> dict[str, Tier]:
        """Return where each artifact's weights are, by manifest digest. Reads files: not for the loop."""
        return self._supply.tiers(self.holder.resident)

    async def reconcile_now(self) -> None:
        """Re-read the target, and try a refused candidate again."""
        await self._reconciler.retry()

    def start_drain(self) -> asyncio.Task[bool]:
        """Leave service for good: not ready at once, refusing later; a repeat changes nothing.

        The task ends when every request has, or at the deadline.
        """
        if self._drain is None:
            self._drain = asyncio.create_task(
                self.admission.drain(
                    propagation_seconds=self.settings.propagation_seconds,
                    deadline=self.settings.drain_deadline,
                )
            )
            # Marked here and not when the task first runs, so that no probe in between says ready.
            self.admission.is_draining = True
            self._reporter.wake()
        return self._drain

    def hurry(self) -> None:
        """End now: a drain waits for nothing any more, and sessions end at their next step."""
        self._is_hurried = True
        self.admission.hurry()
        self.sessions.end()

    async def close(self) -> bool:
        """End every task and thread, and say good-bye to the registry.

        Returns whether all of them ended in time.
        """
        deadline = HURRIED_SECONDS if self._is_hurried else self.settings.drain_deadline
        has_loaded = asyncio.create_task(self._reconciler.close(deadline))
        for task in self._tasks:
            task.cancel()
        pending: set[asyncio.Task[None]] = set()
        if self._tasks:
            # A task does not end before its thread does, where that is in the middle of a swap.
            _, pending = await asyncio.wait(self._tasks, timeout=deadline)
        await self._reporter.send()
        await self._client.aclose()
        for part in (self.sessions, self.executor, self._cleanup):
            await asyncio.to_thread(part.close, deadline)
        are_alive = bool(pending) or self.executor.is_alive or self.sessions.is_alive
        return await has_loaded and not are_alive

    def _create_cleanup(self, retired: "SimpleQueue[Generation | None]") -> CleanupWorker:
        return CleanupWorker(
            queue=retired,
            forget=self.holder.forget,
            dispose=self._supply.standby.keep,
            failed=self.metrics.cleanup_failures.inc,
            disposed=self.metrics.disposed,
        )

    def _create_executor(self) -> Executor:
        return Executor(
            release=self.holder.release,
            batched=self.metrics.batch_size.observe,
            scored=self.metrics.scored,
            health=self._health,
            max_queue=self.settings.max_queue,
            max_batch=self.settings.max_batch,
        )

    def _create_reconciler(self) -> Reconciler:
        settings = self.settings
        return Reconciler(
            settings=settings,
            holder=self.holder,
            supply=self._supply,
            board=CandidateBoard(
                changed=self._reporter.progressed,
                phase_ended=self.metrics.phase_ended,
                is_busy=lambda: self.admission.is_busy,
            ),
            metrics=self.metrics,
            swapper=InPlaceSwapper(
                holder=self.holder,
                gate=self.gate,
                sessions=self.sessions,
                health=self._health,
                limit=settings.pause_limit,
                phase_ended=self.metrics.phase_ended,
            ),
            reader=TargetReader(
                client=self._client,
                service=settings.service,
                cohort=settings.cohort,
                instance_id=settings.instance_id,
            ),
            reporter=self._reporter,
        )

    def _create_watch(self) -> TargetWatch:
        settings = self.settings
        return TargetWatch(
            client=self._client,
            service=settings.service,
            cohort=settings.cohort,
            wait=settings.watch_wait,
            backoff=Backoff(initial=settings.retry_initial, maximum=settings.retry_maximum),
            accept=self._reconciler.accept,
            answered=self._reconciler.registry_answered,
        )

    async def _read_memory(self) -> MemoryUse:
        """Read what the system and the allocator say, which takes files and locks."""
        self._memory = await asyncio.to_thread(memory_use, self.settings.device)
        return self._memory

    async def _guard(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Serve on when a background task fails for a reason nobody foresaw, and ask for a restart."""
        try:
            await run()
        except Exception:
            self._has_failed = True
            _logger.exception("the %s ended; restart the instance", name)
