import asyncio
import contextlib
import json
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import uvicorn

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.artifacts.signing_keys import KeyRole, SigningKey, VerificationKeys
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, Precision, WeightFormat
from weightshift.contracts.target import Publication, Target
from weightshift.local.demo_models import ModelRecipe, expected_answers, train, write_artifact
from weightshift.local.traffic_check import Expectations
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import Grant, MemoryTokens, Role

SERVICE = Service(model="ranker", environment="test")
_PORTS = re.compile(r"data on port (\d+), admin on port (\d+), liveness on port (\d+)")
ADMIN_TOKEN = "admin-token-of-the-test"
DEADLINE = 30.0
CI_KEY = SigningKey.generate(KeyRole.ARTIFACT)
RELEASE_KEY = SigningKey.generate(KeyRole.RELEASE)
PLUGINS = Path(__file__).parent / "plugins"
RECIPES = (
    ModelRecipe("v41", hidden=(64, 32), seed=41, steps=5),
    ModelRecipe("v42", hidden=(64, 32), seed=42, steps=5),
    ModelRecipe("v45", hidden=(64, 32), seed=45, steps=1, features=82),
)


async def until(condition: object, deadline: float = DEADLINE) -> None:
    """Wait for a condition, a plain or an asynchronous one."""
    async with asyncio.timeout(deadline):
        while True:
            result = condition()  # type: ignore[operator]
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Artifacts:
    store: Path
    records: dict[str, ArtifactRecord]
    expectations: Expectations


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Control:
    """The registry, and how the tests publish to it."""

    registry: MemoryRegistry
    url: str
    token: str
    operations: int = 0

    async def publish(
        self, artifact_id: str, *, raise_serve_floor: bool = False, cohort: Cohort = Cohort.STABLE
    ) -> Target:
        self.operations += 1
        return await self.registry.publish(
            Publication(
                service=SERVICE,
                cohort=cohort,
                artifact_id=artifact_id,
                raise_serve_floor=raise_serve_floor,
                fence=Fence(epoch=0, sequence=self.operations),
                operation_id=f"operation-{self.operations}",
                release_id="release",
                operator="test",
            )
        )

    async def add(self, artifacts: Artifacts, directory: Path, *, architecture: str, schema: str) -> None:
        """Push, register and approve what is in a directory, under the directory's name."""
        manifest = build_manifest(
            directory,
            model=SERVICE.model,
            artifact_id=directory.name,
            runtime=WeightFormat.SAFETENSORS,
            feature_schema=schema,
            precision=Precision.FP32,
            architecture=architecture,
        )
        record = push_artifact(FileObjectStore(root=artifacts.store), directory, manifest, signing_key=CI_KEY)
        await self.registry.register_artifact(record, operator="test")
        await self.registry.approve_artifact(SERVICE.model, directory.name, operator="test")

    async def report(self) -> InstanceReport:
        (state,) = await self.registry.instances(SERVICE, lost_after=timedelta(seconds=DEADLINE))
        return state.report


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


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    root = tmp_path_factory.mktemp("artifacts")
    store = FileObjectStore(root=root / "store")
    models = [train(recipe) for recipe in RECIPES]
    records = {}
    for model in models:
        name = model.recipe.artifact_id
        write_artifact(model, root / name)
        manifest = build_manifest(
            root / name,
            model=SERVICE.model,
            artifact_id=name,
            runtime=WeightFormat.SAFETENSORS,
            feature_schema="ranker-v1",
            precision=Precision.FP32,
            architecture="ranker",
        )
        records[name] = push_artifact(store, root / name, manifest, signing_key=CI_KEY)
    expectations = root / "expectations.json"
    expectations.write_text(json.dumps(expected_answers(models[:2])), encoding="utf-8")
    return Artifacts(root / "store", records, Expectations.read(expectations))


@pytest.fixture
async def control(artifacts: Artifacts) -> AsyncIterator[Control]:
    accepted = VerificationKeys.from_pem(RELEASE_KEY.public_pem(), role=KeyRole.RELEASE, source="test")
    registry = MemoryRegistry(
        authoriser=ReleaseAuthoriser(key=RELEASE_KEY, accepted=accepted, validity=timedelta(days=1))
    )
    tokens = MemoryTokens()
    token = tokens.issue(
        Grant(role=Role.RUNTIME, subject="runtime", model=SERVICE.model, environment=SERVICE.environment)
    )
    for record in artifacts.records.values():
        await registry.register_artifact(record, operator="test")
        await registry.approve_artifact(record.model, record.artifact_id, operator="test")
    app = create_app(registry=registry, tokens=tokens, bell=registry.bell)
    server = _Server(
        uvicorn.Config(app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Control(registry, f"http://127.0.0.1:{port}", token)
    server.should_exit = True
    await serving


@contextlib.asynccontextmanager
async def running(
    artifacts: Artifacts, cache: Path, *, registry_url: str, registry_token: str, **settings: str
) -> AsyncIterator[Runtime]:
    environment = {
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
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", env=environment, stderr=PIPE
    )
    lines: list[str] = []
    ports: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()

    async def read_log() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            lines.append(line.decode())
            if match := _PORTS.search(lines[-1]):
                ports.set_result(tuple(map(int, match.groups())))
        if not ports.done():
            ports.set_exception(AssertionError("".join(lines)))

    reading = asyncio.create_task(read_log())
    try:
        data_port, admin_port, live_port = await asyncio.wait_for(ports, DEADLINE)
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


class Bench:
    """Starts instances of the artifacts, of one control plane or of none."""

    def __init__(self, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        self.admin_token = ADMIN_TOKEN
        self.until = until

    def running(self, control: Control, cache: Path, **settings: str) -> AbstractAsyncContextManager[Runtime]:
        return running(
            self.artifacts, cache, registry_url=control.url, registry_token=control.token, **settings
        )

    def alone(self, cache: Path) -> AbstractAsyncContextManager[Runtime]:
        return running(self.artifacts, cache, registry_url="http://127.0.0.1:9", registry_token="none")


@pytest.fixture(scope="module")
def bench(artifacts: Artifacts) -> Bench:
    return Bench(artifacts)


@pytest.fixture(scope="module")
async def unpublished(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """An instance whose registry is not there and that has nothing to serve."""
    async with bench.alone(tmp_path_factory.mktemp("cache")) as runtime:
        yield runtime
