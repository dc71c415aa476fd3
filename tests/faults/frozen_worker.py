"""The control plane's worker, which freezes the moment all commands it waits for are about to be carried out.

It is the real worker; only its ways to the mesh and to the registry stop in front of the write. Where it
goes on, after a SIGCONT, it carries the commands out as if no time had passed.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import worker
from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.target import Publication, Target
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.contracts.wave import WaveGrant, WaveRequest
from weightshift.mesh.base import Mesh
from weightshift.mesh.open_mesh import open_mesh
from weightshift.registry.store import PostgresRegistry
from weightshift.settings import MeshSettings

Answer = TypeVar("Answer")


class Gate:
    """Lets commands pass, then stops the whole process in front of the last of `waited_for`, once."""

    def __init__(self, waited_for: int, *, passing: int) -> None:
        self._missing = waited_for
        self._passing = passing
        self._opened = asyncio.Event()

    async def pass_through(self) -> None:
        if self._passing:
            self._passing -= 1
            return
        self._missing -= 1
        if self._missing == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
            self._opened.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._opened.wait()


async def to_the_end(write: Coroutine[None, None, Answer]) -> Answer:
    """Carry a write out even if Temporal's client has noticed meanwhile that its time is up.

    Whether it notices before the write is on its way is a matter of luck; here the write always wins.
    """
    task = asyncio.ensure_future(write)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


GATE = Gate(int(os.environ["FREEZE_BEFORE"]), passing=int(os.environ["FREEZE_AFTER"]))


class FreezingRegistry(PostgresRegistry):
    """Freezes before a publication and before a grant."""

    async def publish(self, publication: Publication) -> Target:
        await GATE.pass_through()
        return await to_the_end(super().publish(publication))

    async def grant_wave(self, request: WaveRequest) -> WaveGrant:
        await GATE.pass_through()
        return await to_the_end(super().grant_wave(request))


class FreezingMesh:
    """Freezes before a write."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mesh, name)

    async def write(
        self, service: Service, split: TrafficSplit, fence: Fence, *, expected: MeshState | None = None
    ) -> MeshState:
        await GATE.pass_through()
        return await to_the_end(self._mesh.write(service, split, fence, expected=expected))


def freezing_mesh(settings: MeshSettings) -> Mesh:
    return cast(Mesh, FreezingMesh(open_mesh(settings)))


if __name__ == "__main__":
    vars(worker).update(open_mesh=freezing_mesh, PostgresRegistry=FreezingRegistry)
    worker.run()
