"""Envoy in front of both cohorts, and the mesh agent that writes its route file."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from weightshift.contracts.identity import Service
from weightshift.local.binaries import find_binary
from weightshift.local.files import secret, write_private
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, python_module
from weightshift.mesh.envoy_bootstrap import Endpoint, EnvoyBootstrap, bootstrap

_ROUTES = "envoy/routes"


@dataclass(frozen=True, kw_only=True)
class EnvoyAddress:
    """Where the data port, the admin port and the mesh agent are. The token is the agent's."""

    port: int
    admin_port: int
    agent_port: int
    agent_token: str = field(repr=False)

    @property
    def url(self) -> str:
        """Where requests go."""
        return f"http://{HOST}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Where Envoy tells what it does."""
        return f"http://{HOST}:{self.admin_port}"

    @property
    def agent_url(self) -> str:
        """Where splits are written."""
        return f"http://{HOST}:{self.agent_port}"


def envoy_address(directory: Path, ports: Sequence[int]) -> EnvoyAddress:
    """Name three ports: data, admin and agent. The agent's token is made on first use."""
    port, admin_port, agent_port = ports
    token = secret(directory / "secrets/mesh-agent")
    return EnvoyAddress(port=port, admin_port=admin_port, agent_port=agent_port, agent_token=token)


def envoy_spec(
    directory: Path, address: EnvoyAddress, *, stable: Sequence[int], canary: Sequence[int]
) -> ProcessSpec:
    """Describe Envoy in front of instances on these loopback ports. Its mesh agent must start first."""
    settings = EnvoyBootstrap(
        host=HOST,
        port=address.port,
        admin_host=HOST,
        admin_port=address.admin_port,
        route_directory=str(directory / _ROUTES),
        route_file=str(_route_file(directory)),
        stable=_endpoints(stable),
        canary=_endpoints(canary),
    )
    configuration = directory / "envoy/bootstrap.json"
    write_private(configuration, json.dumps(bootstrap(settings)))
    return ProcessSpec(
        name="envoy",
        command=(
            str(find_binary("envoy")),
            *("--config-path", str(configuration), "--disable-hot-restart"),
            *("--concurrency", "2", "--log-level", "warning"),
        ),
        ready=answers(address.admin_port, "/ready"),
    )


def mesh_agent_spec(directory: Path, address: EnvoyAddress, service: Service) -> ProcessSpec:
    """Describe the mesh agent of that Envoy."""
    return ProcessSpec(
        name="mesh-agent",
        command=python_module("weightshift.mesh.envoy_agent"),
        environment={
            "WEIGHTSHIFT_MESH_AGENT_HOST": HOST,
            "WEIGHTSHIFT_MESH_AGENT_PORT": str(address.agent_port),
            "WEIGHTSHIFT_MESH_AGENT_TOKEN": address.agent_token,
            "WEIGHTSHIFT_MESH_AGENT_MODEL": service.model,
            "WEIGHTSHIFT_MESH_AGENT_ENVIRONMENT": service.environment,
            "WEIGHTSHIFT_MESH_AGENT_ROUTE_FILE": str(_route_file(directory)),
            "WEIGHTSHIFT_MESH_AGENT_ENVOY_ADMIN_URL": address.admin_url,
        },
        ready=answers(address.agent_port, "/healthz"),
    )


@asynccontextmanager
async def envoy_server(
    directory: Path, service: Service, *, stable: Sequence[int], canary: Sequence[int]
) -> AsyncIterator["RunningEnvoy"]:
    """Run Envoy and its mesh agent alone, in front of instances on these loopback ports."""
    address = envoy_address(directory, free_ports(3))
    envoy = envoy_spec(directory, address, stable=stable, canary=canary)
    agent = mesh_agent_spec(directory, address, service)
    server = RunningEnvoy(
        address=address,
        envoy=ManagedProcess(spec=envoy, directory=directory),
        agent=ManagedProcess(spec=agent, directory=directory),
    )
    try:
        await server.agent.start()
        await server.envoy.start()
        yield server
    finally:
        await server.envoy.stop()
        await server.agent.stop()


@dataclass(frozen=True, kw_only=True)
class RunningEnvoy:
    """An Envoy with its mesh agent; either can be killed and started again."""

    address: EnvoyAddress
    envoy: ManagedProcess
    agent: ManagedProcess


def _endpoints(ports: Sequence[int]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(host=HOST, port=port) for port in ports)


def _route_file(directory: Path) -> Path:
    return directory / _ROUTES / "route.json"
