"""Waiting until a stack's instances report to its registry: a release is refused before they do."""

import asyncio
from collections.abc import Collection
from typing import Protocol

from weightshift.contracts.identity import Service
from weightshift.contracts.instance import InstanceState
from weightshift.errors import LocalStackError, RegistryUnreachable

_POLL_INTERVAL = 0.1


class InstanceReader(Protocol):
    """What is read of a registry."""

    async def instances(self, service: Service) -> tuple[InstanceState, ...]:
        """Read a service's instances."""


async def wait_for_reports(
    registry: InstanceReader, service: Service, names: Collection[str], *, seconds: float
) -> None:
    """Return once every named instance reports. Raises `LocalStackError` with those that do not in time."""
    missing = sorted(names)
    try:
        async with asyncio.timeout(seconds):
            while missing := sorted(set(names) - await _reporting(registry, service)):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError:
        raise LocalStackError(
            f"{', '.join(missing)} did not report to the registry within {seconds:g} s; see the logs"
        ) from None


async def _reporting(registry: InstanceReader, service: Service) -> set[str]:
    try:
        states = await registry.instances(service)
    except RegistryUnreachable:
        return set()
    return {state.report.instance_id for state in states if not state.lost}
