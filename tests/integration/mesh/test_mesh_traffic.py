"""What requests experience behind a real Envoy."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from weightshift.contracts.identity import Fence, Service
from weightshift.contracts.traffic import TrafficSplit
from weightshift.local.envoy import RunningEnvoy, envoy_server
from weightshift.local.ports import free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers
from weightshift.mesh.envoy import EnvoyMesh

SERVICE = Service(model="ranker", environment="test")

# A process of its own, so that it can die like one. `/fail` makes it refuse predictions, staying ready, and
# `/late` say that their time is up; `/count` says how many it was asked for. It names the time it was given.
INSTANCE = """
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    failure = 0
    asked = 0

    def do_GET(self):
        if self.path in ("/fail", "/late"):
            Handler.failure = 503 if self.path == "/fail" else 504
        if self.path == "/generate":
            self.stream()
            return
        if self.path == "/predict":
            Handler.asked += 1
        failure = Handler.failure if self.path == "/predict" else 0
        answer = str(Handler.asked) if self.path == "/count" else sys.argv[2]
        self.send_response(failure or 200)
        self.send_header("x-given-ms", self.headers.get("x-envoy-expected-rq-timeout-ms", ""))
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer.encode())

    def stream(self):
        self.send_response(200)
        self.send_header("x-given-ms", self.headers.get("x-envoy-expected-rq-timeout-ms", ""))
        self.send_header("connection", "close")
        self.end_headers()
        for second in range(7):
            self.wfile.write(b"data: %d\\n\\n" % second)
            self.wfile.flush()
            time.sleep(1)

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Pools:
    """Two instances per cohort behind one Envoy."""

    def __init__(self, envoy: RunningEnvoy, mesh: EnvoyMesh, client: httpx.AsyncClient) -> None:
        self.envoy = envoy
        self.mesh = mesh
        self.client = client
        self.instances: dict[str, ManagedProcess] = {}
        self.ports: dict[str, int] = {}
        self._sequence = 0

    async def split(self, canary: int, *, mirrored: int = 0) -> None:
        self._sequence += 1
        fence = Fence(epoch=1, sequence=self._sequence)
        split = TrafficSplit.with_canary(canary, mirrored=mirrored)
        await self.mesh.confirm(SERVICE, await self.mesh.write(SERVICE, split, fence))

    async def tell(self, cohort: str, path: str) -> list[str]:
        """Ask every instance of a cohort directly."""
        async with httpx.AsyncClient() as client:
            answers = [
                await client.get(f"http://127.0.0.1:{port}{path}")
                for name, port in self.ports.items()
                if name.startswith(cohort)
            ]
        return [answer.text for answer in answers]

    async def asked(self, cohort: str) -> int:
        """How many predictions the instances of a cohort were asked for."""
        return sum(int(count) for count in await self.tell(cohort, "/count"))

    async def ask(self, **headers: str) -> str:
        response = await self.client.get("/predict", headers=headers)
        assert response.status_code == 200, response.text
        return response.text

    async def answered_by(self, requests: int) -> Counter[str]:
        answers_ = [await self.ask() for _ in range(requests)]
        return Counter(answer.split("-")[0] for answer in answers_)

    async def healthy(self) -> set[str]:
        async with httpx.AsyncClient(base_url=self.envoy.address.admin_url) as admin:
            content = (await admin.get("/clusters?format=json")).json()
        named = {port: name for name, port in self.ports.items()}
        return {
            named[host["address"]["socket_address"]["port_value"]]
            for cluster in content["cluster_statuses"]
            for host in cluster.get("host_statuses", ())
            if "failed_active_health_check" not in host["health_status"]
        }

    async def until_healthy(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while await self.healthy() != set(names):
                await asyncio.sleep(0.02)


def instance(name: str, port: int, directory: Path) -> ManagedProcess:
    spec = ProcessSpec(
        name=name,
        command=(sys.executable, "-c", INSTANCE, str(port), name),
        ready=answers(port, "/readyz"),
    )
    return ManagedProcess(spec=spec, directory=directory)


@pytest.fixture
async def pools(tmp_path: Path) -> AsyncIterator[Pools]:
    names = ("stable-0", "stable-1", "canary-0", "canary-1")
    ports = dict(zip(names, free_ports(4), strict=True))
    async with AsyncExitStack() as stack:
        instances = {name: instance(name, port, tmp_path) for name, port in ports.items()}
        for process in instances.values():
            stack.push_async_callback(process.stop)
        await asyncio.gather(*(process.start() for process in instances.values()))
        stable, canary = [ports[name] for name in names[:2]], [ports[name] for name in names[2:]]
        server = await stack.enter_async_context(
            envoy_server(tmp_path, SERVICE, stable=stable, canary=canary)
        )
        token = SecretStr(server.address.agent_token)
        mesh = EnvoyMesh(agent_urls=[server.address.agent_url], token=token, timeout=2, confirm_timeout=2)
        stack.push_async_callback(mesh.aclose)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=server.address.url))
        pools = Pools(server, mesh, client)
        pools.instances, pools.ports = instances, ports
        await pools.until_healthy(*names)
        yield pools


async def test_a_cohort_without_weight_gets_no_request(pools: Pools) -> None:
    for canary, only in ((0, "stable"), (100, "canary"), (0, "stable")):
        await pools.split(canary)
        assert await pools.answered_by(300) == {only: 300}


async def test_traffic_follows_the_weights(pools: Pools) -> None:
    await pools.split(25)
    answered = await pools.answered_by(1_000)
    # Five standard deviations of a fair 25 %.
    assert abs(answered["canary"] - 250) < 70


async def test_a_user_stays_on_the_canary_while_its_weight_rises(pools: Pools) -> None:
    users = [f"user-{number}" for number in range(200)]
    before: set[str] = set()
    for canary in (5, 25, 50, 100):
        await pools.split(canary)
        first = {user for user in users if (await pools.ask(**{"x-user-id": user})).startswith("canary")}
        again = {user for user in users if (await pools.ask(**{"x-user-id": user})).startswith("canary")}
        assert first == again
        assert before <= first
        before = first
    assert before == set(users)


async def test_a_killed_instance_costs_no_request(pools: Pools) -> None:
    await pools.split(50)
    answered: asyncio.Queue[str] = asyncio.Queue()

    async def keep_asking() -> None:
        while True:
            answered.put_nowait(await pools.ask())

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(keep_asking()) for _ in range(8)]
        for _ in range(200):
            await answered.get()
        await pools.instances["stable-0"].kill()
        await pools.instances["canary-1"].kill()
        await pools.until_healthy("stable-1", "canary-0")
        for _ in range(200 + answered.qsize()):
            await answered.get()
        for client in clients:
            client.cancel()


async def test_a_canary_without_instances_fails_over_to_stable(pools: Pools) -> None:
    await pools.split(100)
    await pools.instances["canary-0"].kill()
    await pools.instances["canary-1"].kill()
    assert await pools.answered_by(50) == {"stable": 50}
    await pools.until_healthy("stable-0", "stable-1")
    assert await pools.answered_by(50) == {"stable": 50}


@pytest.mark.parametrize("failure", ["/fail", "/late"])
async def test_a_canary_that_refuses_everything_costs_no_request(pools: Pools, failure: str) -> None:
    await pools.split(100)
    await pools.tell("canary", failure)
    assert await pools.answered_by(100) == {"stable": 100}


async def test_stable_never_fails_over_to_the_canary(pools: Pools) -> None:
    await pools.split(0)
    await pools.instances["stable-0"].kill()
    await pools.instances["stable-1"].kill()
    await pools.until_healthy("canary-0", "canary-1")
    responses = [await pools.client.get("/predict") for _ in range(20)]
    assert {response.status_code for response in responses} == {503}


async def test_a_share_of_the_canarys_requests_is_copied_to_stable_and_its_answers_dropped(
    pools: Pools,
) -> None:
    await pools.split(100, mirrored=20)
    assert await pools.answered_by(400) == {"canary": 400}
    assert await pools.asked("canary") == 400
    # Five standard deviations of a fair 20 %.
    assert abs(await pools.asked("stable") - 80) < 40
    await pools.split(100)
    before = await pools.asked("stable")
    assert await pools.answered_by(100) == {"canary": 100}
    assert await pools.asked("stable") == before


async def test_a_control_arm_that_fails_or_dies_costs_no_request(pools: Pools) -> None:
    await pools.split(100, mirrored=100)
    await pools.tell("stable", "/fail")
    assert await pools.answered_by(100) == {"canary": 100}
    await pools.instances["stable-0"].kill()
    await pools.instances["stable-1"].kill()
    assert await pools.answered_by(100) == {"canary": 100}
    await pools.until_healthy("canary-0", "canary-1")
    assert await pools.answered_by(100) == {"canary": 100}


@pytest.mark.parametrize("path", ["/predict", "/v2/models/ranker/infer"])
async def test_an_instance_is_told_how_long_envoy_waits_and_no_client_changes_that(
    pools: Pools, path: str
) -> None:
    plain = await pools.client.get(path)
    assert plain.headers["x-given-ms"] == "5000"
    meddling = ("expected-rq-timeout-ms", "upstream-rq-timeout-ms", "upstream-rq-per-try-timeout-ms")
    headers = {f"x-envoy-{name}": "60" for name in meddling}
    # Envoy believes more of those who seem to come from within.
    answer = await pools.client.get(path, headers={**headers, "x-forwarded-for": "10.0.0.1"})
    assert answer.headers["x-given-ms"] == "5000"


async def test_a_stream_outlasts_what_envoy_allows_a_prediction(pools: Pools) -> None:
    answer = await pools.client.get("/generate", timeout=20)
    assert answer.headers["x-given-ms"] == ""
    assert answer.text == "".join(f"data: {second}\n\n" for second in range(7))
