"""The overlay for one machine: its Envoy and mesh agent, as the manifests configure them."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from tests.deploy.manifests import DEPLOY, Container, containers, find
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.local.binaries import find_binary
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, python_module
from weightshift.mesh.envoy import EnvoyMesh
from weightshift.mesh.envoy_agent import AgentSettings
from weightshift.mesh.envoy_bootstrap import Endpoint, EnvoyBootstrap, bootstrap
from weightshift.settings import MeshSettings

SHIPPED = DEPLOY / "kubernetes/overlays/single-node/envoy.json"
ROUTES = "/var/lib/weightshift/routes"
SERVICE = Service(model="ranker", environment="production")
TOKEN = "a-token-of-the-mesh-agent"


def instances(cohort: str) -> tuple[Endpoint, ...]:
    """All of a cohort by the name of its headless Service."""
    service = find("single-node", "Service", f"ranker-{cohort}-instances")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"]["weightshift.dev/cohort"] == cohort
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    port = service["spec"]["ports"][0]["port"]
    return (Endpoint(host=f"{name}.{namespace}.svc.cluster.local", port=port),)


def in_pod(name: str) -> Container:
    (found,) = [one for one in containers("single-node") if one.spec["name"] == name]
    return found


def test_envoy_is_configured_as_everywhere_else() -> None:
    settings = EnvoyBootstrap(
        host="0.0.0.0",  # noqa: S104 - the pod's own
        port=in_pod("envoy").spec["ports"][0]["containerPort"],
        admin_host="127.0.0.1",
        admin_port=9901,
        route_directory=ROUTES,
        route_file=in_pod("mesh-agent").environment()["WEIGHTSHIFT_MESH_AGENT_ROUTE_FILE"],
        stable=instances("stable"),
        canary=instances("canary"),
    )
    wanted = json.dumps(bootstrap(settings), indent=2) + "\n"
    assert SHIPPED.read_text() == wanted, f"write this to {SHIPPED}:\n{wanted}"


def test_envoy_and_its_agent_share_the_route_file() -> None:
    for name in ("envoy", "mesh-agent"):
        mounts = {one["mountPath"]: one for one in in_pod(name).spec["volumeMounts"]}
        assert mounts[ROUTES]["name"] == "routes"
        assert mounts[ROUTES].get("readOnly", False) is (name == "envoy")
    # The agent is there before Envoy reads the file, and after it.
    agent = in_pod("mesh-agent")
    assert agent.spec["restartPolicy"] == "Always"
    assert agent.spec in agent.pod["initContainers"]


def instance(directory: Path, cohort: Cohort, port: int) -> ManagedProcess:
    """Something ready that answers with the name of its cohort."""
    content = directory / cohort.value
    content.mkdir()
    for name in ("readyz", "predict"):
        (content / name).write_text(cohort.value)
    command = (*python_module("http.server"), str(port), "--bind", HOST, "--directory", str(content))
    spec = ProcessSpec(name=cohort.value, command=command, ready=answers(port, "/readyz"))
    return ManagedProcess(spec=spec, directory=directory)


def agent_process(directory: Path, port: int, admin_port: int) -> ManagedProcess:
    """The mesh agent with the variables of its manifest, but for addresses and paths."""
    prefix = str(AgentSettings.model_config["env_prefix"])
    environment = in_pod("mesh-agent").environment() | {
        f"{prefix}HOST": HOST,
        f"{prefix}PORT": str(port),
        f"{prefix}TOKEN": TOKEN,
        f"{prefix}ROUTE_FILE": str(directory / "routes/route.json"),
        f"{prefix}ENVOY_ADMIN_URL": f"http://{HOST}:{admin_port}",
    }
    command = python_module("weightshift.mesh.envoy_agent")
    ready = answers(port, "/healthz")
    spec = ProcessSpec(name="mesh-agent", command=command, environment=environment, ready=ready)
    return ManagedProcess(spec=spec, directory=directory)


def envoy_process(directory: Path, ports: dict[str, int]) -> ManagedProcess:
    """Envoy with the shipped configuration, its names and ports made local."""
    content = SHIPPED.read_text().replace(ROUTES, str(directory / "routes"))
    for cohort in Cohort:
        content = content.replace(instances(cohort.value)[0].host, "localhost")
    configuration = json.loads(content)
    configuration["admin"]["address"]["socket_address"]["port_value"] = ports["admin"]
    static = configuration["static_resources"]
    static["listeners"][0]["address"]["socket_address"] = {"address": HOST, "port_value": ports["data"]}
    for cluster in static["clusters"][:2]:
        name = "canary" if cluster["name"].startswith("canary") else "stable"
        (member,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        member["endpoint"]["address"]["socket_address"]["port_value"] = ports[name]
    (directory / "envoy.json").write_text(json.dumps(configuration))
    command = (str(find_binary("envoy")), *in_pod("envoy").spec["args"])
    command = tuple(
        str(directory / "envoy.json") if part.endswith("envoy.json") else part for part in command
    )
    ready = answers(ports["admin"], "/ready")
    return ManagedProcess(spec=ProcessSpec(name="envoy", command=command, ready=ready), directory=directory)


async def test_the_shipped_envoy_finds_instances_by_name_and_moves_traffic(tmp_path: Path) -> None:
    (tmp_path / "routes").mkdir()
    agent, *others = free_ports(5)
    ports = dict(zip(("data", "admin", *Cohort), others, strict=True))
    processes = [instance(tmp_path, cohort, ports[cohort]) for cohort in Cohort]
    processes += [agent_process(tmp_path, agent, ports["admin"]), envoy_process(tmp_path, ports)]
    async with AsyncExitStack() as stack:
        for process in processes:
            await process.start()
            stack.push_async_callback(process.stop)
        settings = MeshSettings(agent_url=f"http://{HOST}:{agent}")
        mesh = EnvoyMesh(
            agent_urls=(settings.agent_url,),
            token=type(settings.agent_token)(TOKEN),
            timeout=settings.timeout,
            confirm_timeout=settings.confirm_timeout,
        )
        stack.push_async_callback(mesh.aclose)
        client = await stack.enter_async_context(httpx.AsyncClient())
        for sequence, cohort in enumerate((Cohort.STABLE, Cohort.CANARY)):
            state = MeshState(split=TrafficSplit.all_to(cohort), fence=Fence(epoch=1, sequence=sequence))
            assert state.fence is not None
            await mesh.write(SERVICE, state.split, state.fence)
            await mesh.confirm(SERVICE, state)
            await until_answered_by(client, ports["data"], cohort)


async def until_answered_by(client: httpx.AsyncClient, port: int, cohort: Cohort) -> None:
    """Ask until a cohort answers: its instances have to be found by name and seen healthy first."""
    async with asyncio.timeout(15):
        while (await client.get(f"http://{HOST}:{port}/predict")).text != cohort:
            await asyncio.sleep(0.05)
