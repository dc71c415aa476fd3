"""The commands that a frozen worker is in front of, what overtakes them, and what they could change."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy

from activities.options import CONTROL_QUEUE
from tests.faults.injection import carried
from weightshift.contracts.commands import MeshWrite, PublishCommand, WaveCommand
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.target import Publication
from weightshift.contracts.traffic import TrafficSplit
from weightshift.contracts.wave import WaveRequest, WaveRevocation
from weightshift.local.live_service import LiveService

FROZEN_WORKER = Path(__file__).parent / "frozen_worker.py"
ATTEMPT = timedelta(seconds=2)
UNTIL_IT_WORKS = RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0)
ONCE = RetryPolicy(maximum_attempts=1)


class Commands(BaseModel):
    """What the frozen worker is in front of, and what follows: every `newer` has a higher fence."""

    shift: MeshWrite
    publish: PublishCommand
    promote: PublishCommand
    wave: WaveCommand
    newer_shift: MeshWrite
    newer_publications: tuple[PublishCommand, ...]
    newer_revocation: WaveRevocation


@workflow.defn(name="LateCommands", sandboxed=False)
class LateCommands:
    """A short release: four commands at once, all but the promotion until they are done, then newer ones."""

    @workflow.run
    async def run(self, commands: Commands) -> None:
        await asyncio.gather(
            self.execute("mesh.write", commands.shift),
            self.execute("registry.publish", commands.publish),
            self.execute("registry.publish", commands.promote, ONCE),
            self.execute("registry.grant_wave", commands.wave),
            return_exceptions=True,
        )
        await self.execute("mesh.write", commands.newer_shift)
        for publication in commands.newer_publications:
            await self.execute("registry.publish", publication)
        await self.execute("registry.revoke_waves", commands.newer_revocation)

    @staticmethod
    async def execute(name: str, command: BaseModel, policy: RetryPolicy = UNTIL_IT_WORKS) -> None:
        await workflow.execute_activity(
            name,
            command,
            task_queue=CONTROL_QUEUE,
            start_to_close_timeout=ATTEMPT,
            retry_policy=policy,
        )


async def commands_of(live: LiveService, serving: str, other: str) -> Commands:
    """Write the commands of a release to `other` that is then taken back to `serving`."""
    service = live.stack.service
    epoch = (await live.registry.releases(service))[0].epoch

    def fence(sequence: int) -> Fence:
        return Fence(epoch=epoch, sequence=1_000 + sequence)

    def publication(sequence: int, cohort: Cohort, artifact_id: str) -> PublishCommand:
        return PublishCommand(
            publication=Publication(
                service=service,
                cohort=cohort,
                artifact_id=artifact_id,
                fence=fence(sequence),
                operation_id=f"late:{sequence}",
                release_id="late",
                operator="tests",
            )
        )

    return Commands(
        shift=MeshWrite(service=service, split=TrafficSplit.with_canary(25), fence=fence(1)),
        publish=publication(2, Cohort.CANARY, other),
        promote=publication(3, Cohort.STABLE, other),
        wave=WaveCommand(request=_wave(service, fence(4))),
        newer_shift=MeshWrite(service=service, split=TrafficSplit.with_canary(0), fence=fence(5)),
        newer_publications=(
            publication(6, Cohort.CANARY, serving),
            publication(7, Cohort.STABLE, serving),
        ),
        newer_revocation=WaveRevocation(
            service=service, fence=fence(8), operation_id="late:8", release_id="late", operator="tests"
        ),
    )


def _wave(service: Service, fence: Fence) -> WaveRequest:
    return WaveRequest(
        service=service,
        revision=1_000,
        instance_ids=("stable-0",),
        lifetime=timedelta(hours=1),
        fence=fence,
        operation_id=f"late:{fence.sequence}",
        release_id="late",
        operator="tests",
    )


@asynccontextmanager
async def frozen_worker(
    live: LiveService, port: int, *, after: int = 0, before: int = 4
) -> AsyncIterator[int]:
    """Run the worker that lets commands pass, and freezes once it has `before` others to carry out.

    Yields its process id; its metrics are on a port.
    """
    environment = {
        **live.command_environment,
        "WEIGHTSHIFT_WORKER_METRICS_ADDRESS": f"127.0.0.1:{port}",
        "FREEZE_AFTER": str(after),
        "FREEZE_BEFORE": str(before),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, str(FROZEN_WORKER), env=environment)
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def is_stopped(pid: int) -> bool:
    status = await asyncio.to_thread(Path(f"/proc/{pid}/stat").read_text)
    return status.rpartition(")")[2].split()[0] == "T"


async def counted(url: str, pattern: str, *, token: str = "") -> float:
    """The sum of the samples of a process's metrics whose line begins like this."""
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        answer = await client.get(f"{url}/metrics", headers=headers)
    return sum(float(value) for value in re.findall(rf"^{pattern}\S* (\S+)$", answer.text, re.MULTILINE))


async def state_of(live: LiveService) -> tuple[object, ...]:
    """What a late write could change: the split with its fence, both targets, the grants."""
    service = live.stack.service
    traffic = await carried(live)
    assert str(traffic.split) == "100/0"
    grants = await live.registry.wave_grants(service)
    assert grants == ()
    return traffic, await live.registry.targets(service), grants
