"""An instance as a process of its own, and clients that check each of its answers."""

import asyncio
import contextlib
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.integration.runtime.control_plane import CI_KEY, DEADLINE, RELEASE_KEY, SERVICE, Artifacts
from weightshift.local.traffic_check import Expectations

_PORTS = re.compile(r"data on port (\d+), admin on port (\d+), liveness on port (\d+)")
ADMIN_TOKEN = "admin-token-of-the-test"
PLUGINS = Path(__file__).parent / "plugins"


async def until(condition: object, deadline: float = DEADLINE) -> None:
    """Wait for a condition, a plain or an asynchronous one."""
    async with asyncio.timeout(deadline):
        while True:
            result = condition()  # type: ignore[operator]
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.01)


@dataclass
class Runtime:
    process: Process
    data: httpx.AsyncClient
    admin: httpx.AsyncClient
    liveness: httpx.AsyncClient
    expectations: Expectations

    async def is_ready(self) -> bool:
        return (await self.data.get("/readyz")).status_code == 200

    async def is_unready(self) -> bool:
        return not await self.is_ready()

    async def serves(self, revision: int) -> bool:
        actual = (await self.admin.get("/admin/status")).json()["report"]["actual"]
        return actual is not None and actual["revision"] == revision

    def traffic(self) -> "Traffic":
        return Traffic(self.expectations, self)


@dataclass
class Traffic:
    """Closed-loop clients that check every answer against the artifact its header names."""

    expectations: Expectations
    runtime: Runtime
    problems: list[str] = field(default_factory=list)
    artifacts: Counter[str] = field(default_factory=Counter)
    stopping: bool = False

    async def client(self, start: int) -> None:
        bodies = self.expectations.bodies
        position = start
        while not self.stopping:
            position = (position + 1) % len(bodies)
            await self.send(position)

    async def send(self, position: int) -> None:
        try:
            response = await self.runtime.data.post("/predict", content=self.expectations.bodies[position])
        except httpx.TransportError as error:
            self.problems.append(repr(error))
            return
        if response.status_code != 200:
            self.problems.append(f"{response.status_code} {response.text}")
            return
        artifact = response.headers["x-weightshift-artifact"]
        self.artifacts[artifact] += 1
        if problem := self.expectations.problem(artifact, position, response.content):
            self.problems.append(problem)

    @contextlib.asynccontextmanager
    async def running(self, clients: int = 8) -> AsyncIterator["Traffic"]:
        tasks = [asyncio.create_task(self.client(7 * number)) for number in range(clients)]
        try:
            yield self
        finally:
            self.stopping = True
            await asyncio.gather(*tasks)


def _environment(
    artifacts: Artifacts, cache: Path, registry_url: str, registry_token: str, settings: dict[str, str]
) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PLUGINS),
        "TEST_GATE": str(cache),
        "WEIGHTSHIFT_STORE_URL": f"file://{artifacts.store}",
        **{
            f"WEIGHTSHIFT_RUNTIME_{name}": value
            for name, value in {
                "MODEL": SERVICE.model,
                "ENVIRONMENT": SERVICE.environment,
                "COHORT": "stable",
                "INSTANCE_ID": "stable-0",
                "DATA_PORT": "0",
                "ADMIN_PORT": "0",
                "LIVE_PORT": "0",
                "ADMIN_TOKEN": ADMIN_TOKEN,
                "REGISTRY_URL": registry_url,
                "REGISTRY_TOKEN": registry_token,
                "CACHE_DIR": str(cache),
                "HEARTBEAT": "0.2",
                "START_WAIT": "1",
                "PROPAGATION_SECONDS": "2",
                "DRAIN_DEADLINE": "5",
                "ARTIFACT_KEYS": CI_KEY.public_pem().decode(),
                "RELEASE_KEYS": RELEASE_KEY.public_pem().decode(),
                **settings,
            }.items()
        },
    }


class _Log:
    """Reads what a process logs, and finds there which ports it listens on."""

    def __init__(self, process: Process) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._lines: list[str] = []
        self.ports: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()

    async def read(self) -> None:
        async for line in self._stream:
            self._lines.append(line.decode())
            if match := _PORTS.search(self._lines[-1]):
                self.ports.set_result(tuple(map(int, match.groups())))
        if not self.ports.done():
            self.ports.set_exception(AssertionError("".join(self._lines)))


@contextlib.asynccontextmanager
async def running(
    artifacts: Artifacts, cache: Path, *, registry_url: str, registry_token: str, **settings: str
) -> AsyncIterator[Runtime]:
    """Run an instance as a process of its own until the block ends."""
    environment = _environment(artifacts, cache, registry_url, registry_token, settings)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", env=environment, stderr=PIPE
    )
    log = _Log(process)
    reading = asyncio.create_task(log.read())
    try:
        data_port, admin_port, live_port = await asyncio.wait_for(log.ports, DEADLINE)
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{data_port}", timeout=10) as data,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{admin_port}",
                headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            ) as admin,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{live_port}", timeout=10) as liveness,
        ):
            yield Runtime(process, data, admin, liveness, artifacts.expectations)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
