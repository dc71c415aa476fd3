"""One runtime instance that follows a registry in this process, without the rest of a stack."""

import asyncio
import contextlib
import os
import re
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import uvicorn

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import Precision, WeightFormat
from weightshift.contracts.target import Publication, Target
from weightshift.errors import LocalStackError
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import Grant, MemoryTokens, Role

ADMIN_TOKEN = "token-of-a-lone-instance"  # noqa: S105  (of a process that lives for one measurement)
_DEADLINE = 120.0
_PORTS = re.compile(rb"data on port (\d+), admin on port (\d+)")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class LoneRegistry:
    """A registry in memory, served over HTTP, with one artifact store on disk."""

    def __init__(self, *, service: Service, directory: Path) -> None:
        self.service = service
        self.store = directory / "store"
        self.registry = MemoryRegistry()
        self.url = ""
        self._tokens = MemoryTokens()
        self._operations = 0

    def token(self) -> str:
        """Issue a runtime's token."""
        service = self.service
        return self._tokens.issue(
            Grant(role=Role.RUNTIME, subject="runtime", model=service.model, environment=service.environment)
        )

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve it for the length of a `with` block."""
        app = create_app(registry=self.registry, tokens=self._tokens, bell=self.registry.bell)
        server = _Server(
            uvicorn.Config(app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        )
        task = asyncio.create_task(server.serve())
        async with asyncio.timeout(_DEADLINE):
            while not server.started:  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.01)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.should_exit = True
            await task

    async def push(self, directory: Path, *, feature_schema: str, runtime: WeightFormat) -> None:
        """Store and approve the artifact in a directory, which is named like it."""
        manifest = build_manifest(
            directory,
            model=self.service.model,
            artifact_id=directory.name,
            runtime=runtime,
            feature_schema=feature_schema,
            precision=Precision.FP32,
        )
        record = push_artifact(FileObjectStore(root=self.store), directory, manifest)
        await self.registry.register_artifact(record, operator="local")
        await self.registry.approve_artifact(record.model, record.artifact_id, operator="local")

    async def release(self, artifact_id: str) -> None:
        """Publish an artifact, and wait until the instance reports that it serves it."""
        self._operations += 1
        target = await self.registry.publish(
            Publication(
                service=self.service,
                cohort=Cohort.STABLE,
                artifact_id=artifact_id,
                fence=Fence(epoch=0, sequence=self._operations),
                operation_id=f"operation-{self._operations}",
                release_id="release",
                operator="local",
            )
        )
        async with asyncio.timeout(_DEADLINE):
            while not await self._serves(target):  # noqa: ASYNC110 - a registry tells nobody
                await asyncio.sleep(0.005)

    async def _serves(self, target: Target) -> bool:
        states = await self.registry.instances(self.service, lost_after=timedelta(seconds=_DEADLINE))
        actual = [state.report.actual for state in states]
        return any(generation and generation.revision == target.revision for generation in actual)


@dataclass(frozen=True)
class LoneInstance:
    """The addresses of a running instance; the admin port takes `ADMIN_TOKEN`."""

    data_url: str
    admin_url: str
    pid: int


@contextlib.asynccontextmanager
async def lone_instance(
    command: Sequence[str], *, registry: LoneRegistry, cache: Path, settings: Mapping[str, str]
) -> AsyncIterator[LoneInstance]:
    """Run `command` as an instance that follows `registry`, with `WEIGHTSHIFT_RUNTIME_*` settings added."""
    own = {
        "MODEL": registry.service.model,
        "ENVIRONMENT": registry.service.environment,
        "COHORT": "stable",
        "INSTANCE_ID": "stable-0",
        "DATA_PORT": "0",
        "ADMIN_PORT": "0",
        "LIVE_PORT": "0",
        "ADMIN_TOKEN": ADMIN_TOKEN,
        "REGISTRY_URL": registry.url,
        "REGISTRY_TOKEN": registry.token(),
        "CACHE_DIR": str(cache),
        "INSECURE_UNSIGNED": "1",
        **settings,
    }
    environment = {f"WEIGHTSHIFT_RUNTIME_{name}": value for name, value in own.items()}
    environment |= {"PATH": os.environ["PATH"], "WEIGHTSHIFT_STORE_URL": f"file://{registry.store}"}
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=DEVNULL, stderr=PIPE)
    assert process.stderr is not None  # noqa: S101  (for the type checker: it was asked for)
    reading: asyncio.Task[None] | None = None
    try:
        data, admin = await asyncio.wait_for(_read_ports(process.stderr), _DEADLINE)
        reading = asyncio.create_task(_discard(process.stderr))
        yield LoneInstance(f"http://127.0.0.1:{data}", f"http://127.0.0.1:{admin}", process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


async def _read_ports(log: asyncio.StreamReader) -> tuple[int, int]:
    lines = []
    while line := await log.readline():
        if ports := _PORTS.search(line):
            return int(ports[1]), int(ports[2])
        lines.append(line.decode(errors="replace"))
    raise LocalStackError(f"The instance ended before it served: {''.join(lines[-5:])}")


async def _discard(log: asyncio.StreamReader) -> None:
    """Keep the pipe from filling up."""
    while await log.read(1 << 16):
        pass
