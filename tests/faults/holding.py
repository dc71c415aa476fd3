"""What keeps a release in the middle of a step: candidates, publications and the mesh that do not answer."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg

from tests.faults.injection import pair, until, until_served
from weightshift.contracts.identity import Cohort
from weightshift.contracts.instance import CandidatePhase
from weightshift.local.live_service import LiveService


async def make_holdable(live: LiveService, *instances: str) -> None:
    """Run instances so that their candidates can be held; none comes back from host memory, unheld."""
    serving, _ = await pair(live)

    async def restart(name: str) -> None:
        await live.stack.stop(name)
        await live.stack.start(
            name,
            added={
                "WEIGHTSHIFT_RUNTIME_ARCHITECTURES": "held_ranker:HeldRanker",
                "WEIGHTSHIFT_RUNTIME_STANDBY_BYTES": "0",
                "PYTHONPATH": str(Path(__file__).parent),
                "IS_HELD": str(_switch(live, name)),
            },
        )

    await asyncio.gather(*(restart(name) for name in instances))
    for cohort in Cohort:
        await until_served(live, serving, cohort)


@contextlib.contextmanager
def candidates_held(live: LiveService, instance: str) -> Iterator[None]:
    """Let no candidate of an instance get ready for the length of the block."""
    switch = _switch(live, instance)
    switch.touch()
    try:
        yield
    finally:
        switch.unlink()


def _switch(live: LiveService, instance: str) -> Path:
    return live.directory / f"{instance}-is-held"


async def until_held(live: LiveService, instance: str, artifact_id: str) -> None:
    """Wait until an instance has a candidate that waits before its first sample."""

    async def is_held() -> bool:
        candidates = [
            one.report.candidate
            for one in await live.registry.instances(live.stack.service)
            if one.report.instance_id == instance
        ]
        return any(
            one is not None and (one.artifact_id, one.phase) == (artifact_id, CandidatePhase.DRY_RUNNING)
            for one in candidates
        )

    await until(is_held)


async def until_instance_serves(live: LiveService, instance: str, artifact_id: str) -> None:
    """Wait until one instance reports that it serves an artifact."""

    async def serves() -> bool:
        found = [
            one.report.actual
            for one in await live.registry.instances(live.stack.service)
            if one.report.instance_id == instance
        ]
        return any(one is not None and one.artifact_id == artifact_id for one in found)

    await until(serves)


class HeldPublications:
    """Publications that have been sent and are not answered."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._connection = connection

    async def until_one_waits(self) -> None:
        """Wait until the database has a publication in the middle of its transaction."""

        async def is_waiting() -> bool:
            waiting: int = await self._connection.fetchval(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'deployment_target'::regclass"
            )
            return waiting > 0

        await until(is_waiting)


@contextlib.asynccontextmanager
async def publications_held() -> AsyncIterator[HeldPublications]:
    """Let no publication be committed for the length of the block; targets can be read all the time."""
    connection = await asyncpg.connect(os.environ["WEIGHTSHIFT_REGISTRY_DSN"])
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE deployment_target IN EXCLUSIVE MODE")
            yield HeldPublications(connection)
    finally:
        await connection.close()


@contextlib.contextmanager
def stopped(live: LiveService, name: str) -> Iterator[None]:
    """Stop a process (SIGSTOP) for the length of the block."""
    pid = live.stack.pid(name)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
