"""Waiting for a target to change: woken in milliseconds where possible, polling everywhere else."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target, Targets
from weightshift.errors import RegistryUnreachable
from weightshift.registry.shared import Shared

MAX_WAITERS = 10_000
POLL_SECONDS = 5.0
"""How often a waiter looks by itself, in case that nothing wakes it."""


class TargetBell:
    """Wakes whoever waits for a service's targets. Belongs to one event loop."""

    def __init__(self, *, max_waiters: int = MAX_WAITERS) -> None:
        self._max_waiters = max_waiters
        self._waiters: dict[Service, set[asyncio.Event]] = {}
        self._count = 0

    @contextmanager
    def waiter(self, service: Service) -> Iterator[asyncio.Event]:
        """Register a waiter; its event is set by every ring. Raises `RegistryUnreachable` when full."""
        if self._count >= self._max_waiters:
            raise RegistryUnreachable("Too many clients wait for targets here; ask another replica.")
        event = asyncio.Event()
        self._waiters.setdefault(service, set()).add(event)
        self._count += 1
        try:
            yield event
        finally:
            self._count -= 1
            self._waiters[service].discard(event)
            if not self._waiters[service]:
                del self._waiters[service]

    @property
    def waiting(self) -> int:
        """How many waiters there are now."""
        return self._count

    def ring(self, service: Service) -> None:
        """Wake the waiters of one service."""
        for event in self._waiters.get(service, ()):
            event.set()

    def ring_all(self) -> None:
        """Wake everybody, after a silence in which anything may have been missed."""
        for service in self._waiters:
            self.ring(service)


class TargetReader(Protocol):
    """Reads a service's targets: a registry, or something in front of one."""

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets."""


class SharedReads:
    """A reader whose reads are shared by everybody who waits for the same service."""

    def __init__(self, reader: TargetReader) -> None:
        self._shared = Shared(reader.targets)

    async def targets(self, service: Service) -> Targets:
        """Read both cohorts' targets. Raises what the reader raises."""
        return await self._shared.get(service)


async def await_target(
    reader: TargetReader, bell: TargetBell, service: Service, cohort: Cohort, *, known: int, wait: float
) -> Target | None:
    """Return the cohort's target once its revision is not `known` (0 for none), or after `wait` seconds.

    Raises `RegistryUnreachable`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    # Registered before the read: a change between the two rings the bell and is not missed.
    with bell.waiter(service) as rung:
        while True:
            rung.clear()
            target = (await reader.targets(service)).of(cohort)
            remaining = deadline - loop.time()
            if (target.revision if target else 0) != known or remaining <= 0:
                return target
            with suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, POLL_SECONDS)):
                    await rung.wait()
