"""The instance's two conversations with the registry: following its target, and reporting itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from runtime.backoff import Backoff
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.target import Target
from weightshift.errors import WeightshiftError
from weightshift.registry.client import RegistryClient

_logger = logging.getLogger(__name__)
_READ_NOW_SECONDS = 1.0
# Each report takes a moment from requests; a quick load is over before anybody could read how far it is.
_PROGRESS_SECONDS = 0.25


class TargetReader:
    """Asks the registry at once, and takes no answer within a moment for none. Never raises."""

    def __init__(self, *, client: RegistryClient, service: Service, cohort: Cohort, instance_id: str) -> None:
        self._client = client
        self._service = service
        self._cohort = cohort
        self._instance_id = instance_id

    async def target(self) -> Target | None:
        """Return the target, or None."""
        with suppress(TimeoutError, WeightshiftError):
            async with asyncio.timeout(_READ_NOW_SECONDS):
                return await self._client.target(self._service, self._cohort)
        return None

    async def has_grant(self, target: Target) -> bool:
        """Whether a wave grant lets this instance swap to a target now."""
        with suppress(TimeoutError, WeightshiftError):
            async with asyncio.timeout(_READ_NOW_SECONDS):
                grants = await self._client.wave_grants(target.service)
                return any(grant.covers(self._instance_id, target.revision) for grant in grants)
        return False


class TargetWatch:
    """Long-polls one cohort's target and hands every answer to `accept`.

    `answered` is called after every poll, with whether the registry was reached.
    """

    def __init__(
        self,
        *,
        client: RegistryClient,
        service: Service,
        cohort: Cohort,
        wait: float,
        backoff: Backoff,
        accept: Callable[[Target], Awaitable[None]],
        answered: Callable[[bool], None],
    ) -> None:
        self._client = client
        self._service = service
        self._cohort = cohort
        self._wait = wait
        self._backoff = backoff
        self._accept = accept
        self._answered = answered
        self._seen_revision = 0

    async def run(self) -> None:
        """Follow the target for ever; while the registry is away, ask again ever more slowly."""
        wait, is_away = 0.0, False
        while True:
            try:
                await self._poll(wait)
            except WeightshiftError as error:
                if not is_away:
                    _logger.warning("the target cannot be read: %s", error)
                is_away = True
                self._answered(False)
                await asyncio.sleep(self._backoff.next_delay())
            else:
                wait, is_away = self._wait, False
                self._backoff.reset()
                self._answered(True)

    async def _poll(self, wait: float) -> None:
        target = await self._client.target(
            self._service, self._cohort, known_revision=self._seen_revision, wait=wait
        )
        if target is not None:
            # Also a refused target has been seen, or the next poll would return it at once, for ever.
            self._seen_revision = target.revision
            await self._accept(target)


class Reporter:
    """Sends a report at every change and at least every `heartbeat` seconds."""

    def __init__(
        self, *, client: RegistryClient, heartbeat: float, report: Callable[[], Awaitable[InstanceReport]]
    ) -> None:
        self._client = client
        self._heartbeat = heartbeat
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._progress: asyncio.TimerHandle | None = None
        self._is_away = False

    def wake(self) -> None:
        """Report now. Safe from any thread; changes that come together share one report."""
        # The loop is gone only when the process is about to end.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._changed.set)

    def progressed(self) -> None:
        """Report within a quarter of a second, with whatever changes until then. Safe from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._report_later)

    async def run(self) -> None:
        """Report for ever; a failed report is repeated at the next heartbeat."""
        while True:
            await self.send()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat):
                    await self._changed.wait()

    async def send(self) -> None:
        """Report once, now."""
        self._changed.clear()
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None
        try:
            await self._client.report(await self._report())
        except (WeightshiftError, OSError) as error:
            # The system's errors too: a report reads memory, and descriptors may have run out for a while.
            if not self._is_away:
                _logger.warning("the report was not taken: %s", error)
            self._is_away = True
        else:
            self._is_away = False

    def _report_later(self) -> None:
        if self._progress is None:
            self._progress = self._loop.call_later(_PROGRESS_SECONDS, self._changed.set)
