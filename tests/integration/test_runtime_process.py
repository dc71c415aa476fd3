"""The real process against a real HTTP registry and a file store, under load."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import uvicorn

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import CandidatePhase, InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, Precision, WeightFormat
from weightshift.contracts.target import Publication, Target
from weightshift.local.demo_models import ModelRecipe, expected_answers, train, write_artifact
from weightshift.local.traffic_check import Expectations
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import Grant, MemoryTokens, Role

SERVICE = Service(model="ranker", environment="test")
ADMIN_TOKEN = "admin-token-of-the-test"
DEADLINE = 30.0
RECIPES = (
    ModelRecipe("v41", hidden=(64, 32), seed=41, steps=5),
    ModelRecipe("v42", hidden=(64, 32), seed=42, steps=5),
    ModelRecipe("v45", hidden=(64, 32), seed=45, steps=1, features=82),
)


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

    async def publish(self, artifact_id: str, *, raise_serve_floor: bool = False) -> Target:
        self.operations += 1
        return await self.registry.publish(
            Publication(
                service=SERVICE,
                cohort=Cohort.STABLE,
                artifact_id=artifact_id,
                raise_serve_floor=raise_serve_floor,
                fence=Fence(epoch=0, sequence=self.operations),
                operation_id=f"operation-{self.operations}",
                release_id="release",
                operator="test",
            )
        )

    async def report(self) -> InstanceReport:
        (state,) = await self.registry.instances(SERVICE, lost_after=timedelta(seconds=DEADLINE))
        return state.report


@dataclass
class Runtime:
    process: Process
    data: httpx.AsyncClient
    admin: httpx.AsyncClient
    lines: list[str]


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


@pytest.fixture(scope="module")
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
        records[name] = push_artifact(store, root / name, manifest)
    expectations = root / "expectations.json"
    expectations.write_text(json.dumps(expected_answers(models[:2])), encoding="utf-8")
    return Artifacts(root / "store", records, Expectations.read(expectations))


@pytest.fixture
async def control(artifacts: Artifacts) -> AsyncIterator[Control]:
    registry = MemoryRegistry()
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


async def until(condition: object, deadline: float = DEADLINE) -> None:
    """Wait for a condition, a plain or an asynchronous one."""
    async with asyncio.timeout(deadline):
        while True:
            result = condition()  # type: ignore[operator]
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    artifacts: Artifacts, cache: Path, *, registry_url: str, registry_token: str
) -> AsyncIterator[Runtime]:
    environment = {
        "PATH": os.environ["PATH"],
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
                "ADMIN_TOKEN": ADMIN_TOKEN,
                "REGISTRY_URL": registry_url,
                "REGISTRY_TOKEN": registry_token,
                "CACHE_DIR": str(cache),
                "HEARTBEAT": "0.2",
                "START_WAIT": "1",
                "PROPAGATION_SECONDS": "0.3",
                "DRAIN_DEADLINE": "5",
            }.items()
        },
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runtime", env=environment, stderr=PIPE
    )
    lines: list[str] = []
    ports: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    async def read_log() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            lines.append(line.decode())
            if match := re.search(r"data on port (\d+), admin on port (\d+)", lines[-1]):
                ports.set_result((int(match[1]), int(match[2])))
        if not ports.done():
            ports.set_exception(AssertionError("".join(lines)))

    reading = asyncio.create_task(read_log())
    try:
        data_port, admin_port = await asyncio.wait_for(ports, DEADLINE)
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{data_port}", timeout=10) as data,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{admin_port}",
                headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
            ) as admin,
        ):
            yield Runtime(process, data, admin, lines)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def is_ready(runtime: Runtime) -> bool:
    return (await runtime.data.get("/readyz")).status_code == 200


async def serves(runtime: Runtime, revision: int) -> bool:
    status = (await runtime.admin.get("/admin/status")).json()
    actual = status["report"]["actual"]
    return actual is not None and actual["revision"] == revision


async def test_a_swap_under_load_fails_no_request_and_mixes_no_weights(
    artifacts: Artifacts, control: Control, tmp_path: Path
) -> None:
    first = await control.publish("v41")
    async with running(
        artifacts, tmp_path, registry_url=control.url, registry_token=control.token
    ) as runtime:
        await until(lambda: is_ready(runtime))
        async with Traffic(artifacts.expectations, runtime).running() as traffic:
            await until(lambda: traffic.artifacts["v41"] > 100)
            second = await control.publish("v42")
            await until(lambda: traffic.artifacts["v42"] > 100)
            back = await control.publish("v41")
            await until(lambda: serves(runtime, back.revision))
        assert traffic.problems == []
        assert (first.revision, second.revision, back.revision) == (1, 2, 3)
        exposition = (await runtime.admin.get("/metrics")).text
    answered = re.findall(r'requests_total\{artifact="(v4\d)",code="(\d+)".*\} (\d+)\.0', exposition)
    counted = Counter[str]()
    for artifact, code, count in answered:
        counted[artifact] += int(count)
        assert code == "200" or int(count) == 0
    assert counted == traffic.artifacts


async def test_a_candidate_that_does_not_fit_leaves_what_serves_alone(
    artifacts: Artifacts, control: Control, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with running(
        artifacts, tmp_path, registry_url=control.url, registry_token=control.token
    ) as runtime:
        await until(lambda: is_ready(runtime))
        async with Traffic(artifacts.expectations, runtime).running() as traffic:
            broken = await control.publish("v45")

            async def has_failed() -> bool:
                candidate = (await control.report()).candidate
                return candidate is not None and candidate.phase is CandidatePhase.FAILED

            await until(has_failed)
            assert await is_ready(runtime)
        report = await control.report()
        assert traffic.problems == []
        assert report.candidate is not None
        assert report.actual is not None
        assert report.candidate.error is not None
        assert report.candidate.error.type == "IncompatibleModel"
        assert report.candidate.error.permanent
        assert (report.desired_revision, report.actual.revision) == (broken.revision, 1)
        assert report.ready


async def test_below_the_serve_floor_the_instance_refuses(
    artifacts: Artifacts, control: Control, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with running(
        artifacts, tmp_path, registry_url=control.url, registry_token=control.token
    ) as runtime:
        await until(lambda: is_ready(runtime))
        floor = await control.publish("v45", raise_serve_floor=True)
        assert floor.serve_floor == floor.revision

        async def is_unready() -> bool:
            return not await is_ready(runtime)

        await until(is_unready)
        refused = await runtime.data.post("/predict", content=artifacts.expectations.bodies[0])
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "NotServing"
        exposition = (await runtime.admin.get("/metrics")).text
        assert re.search(r"unready_requests_total\{.*\} 1\.0", exposition)
        healthy = await control.publish("v41", raise_serve_floor=True)
        await until(lambda: serves(runtime, healthy.revision))
        assert await is_ready(runtime)


async def test_sigterm_drains_without_losing_a_request(
    artifacts: Artifacts, control: Control, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with running(
        artifacts, tmp_path, registry_url=control.url, registry_token=control.token
    ) as runtime:
        await until(lambda: is_ready(runtime))
        async with Traffic(artifacts.expectations, runtime).running() as traffic:
            await until(lambda: traffic.artifacts["v41"] > 50)
            runtime.process.send_signal(signal.SIGTERM)

            async def is_unready() -> bool:
                return not await is_ready(runtime)

            # A load balancer stops sending once a probe says so; until then requests still count.
            await until(is_unready)
        assert traffic.problems == []
        assert await asyncio.wait_for(runtime.process.wait(), DEADLINE) == 0
    report = await control.report()
    assert report.draining
    assert not report.ready


async def test_after_kill_9_it_starts_from_the_cache_without_the_registry(
    artifacts: Artifacts, control: Control, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with running(
        artifacts, tmp_path, registry_url=control.url, registry_token=control.token
    ) as runtime:
        await until(lambda: is_ready(runtime))
        await until(lambda: (tmp_path / "targets").exists() and any((tmp_path / "targets").iterdir()))
        runtime.process.kill()
        await runtime.process.wait()
    control.registry.available = False
    async with running(
        artifacts, tmp_path, registry_url=control.url, registry_token=control.token
    ) as runtime:
        await until(lambda: is_ready(runtime))
        traffic = Traffic(artifacts.expectations, runtime)
        await traffic.send(0)
        assert traffic.problems == []
        control.registry.available = True
        target = await control.publish("v42")
        await until(lambda: serves(runtime, target.revision))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", ["/admin/status", "/admin/drain", "/admin/reconcile", "/metrics", "/other"])
async def test_every_admin_route_and_method_needs_the_token(
    unpublished: Runtime, method: str, path: str
) -> None:
    for token in ("", "Bearer", f"Bearer {ADMIN_TOKEN}x", f"Basic {ADMIN_TOKEN}"):
        answer = await unpublished.admin.request(method, path, headers={"authorization": token})
        assert answer.status_code == 401
    assert (await unpublished.admin.get("/admin/status")).json()["report"]["draining"] is False


@pytest.fixture(scope="module")
async def unpublished(
    artifacts: Artifacts, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Runtime]:
    """An instance whose registry is not there and that has nothing to serve."""
    async with running(
        artifacts, tmp_path_factory.mktemp("cache"), registry_url="http://127.0.0.1:9", registry_token="none"
    ) as runtime:
        yield runtime


async def test_without_a_model_it_lives_but_is_neither_started_nor_ready(unpublished: Runtime) -> None:
    statuses = {
        path: (await unpublished.data.get(path)).status_code for path in ("/livez", "/startupz", "/readyz")
    }
    assert statuses == {"/livez": 200, "/startupz": 503, "/readyz": 503}
    assert (await unpublished.data.post("/predict", content=b"{}")).status_code == 503


def test_the_process_runs_few_threads(unpublished: Runtime) -> None:
    status = Path(f"/proc/{unpublished.process.pid}/status").read_text(encoding="ascii")
    threads = int(re.search(r"^Threads:\s+(\d+)$", status, re.MULTILINE)[1])  # type: ignore[index]
    assert threads <= 10
