"""Temporal's development server, with the search attributes that releases set."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from weightshift.local.binaries import find_binary
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, running

PORTS = 4
"""Frontend, web interface, HTTP API and metrics."""

SEARCH_ATTRIBUTES = (
    "ReleaseModel",
    "ReleaseEnvironment",
    "ReleaseArtifact",
    "ReleaseStage",
    "ReleaseVerdict",
)


@dataclass(frozen=True, kw_only=True)
class TemporalAddress:
    """Where clients connect (`host:port`), and where people look."""

    target: str
    ui_url: str


def temporal_address(ports: Sequence[int]) -> TemporalAddress:
    """Return the address of the server on these ports."""
    return TemporalAddress(target=f"{HOST}:{ports[0]}", ui_url=f"http://{HOST}:{ports[1]}")


def temporal_spec(directory: Path, ports: Sequence[int]) -> ProcessSpec:
    """Describe the server; its database file in `directory` outlives it."""
    frontend, ui, http, metrics = ports
    attributes = [("--search-attribute", f"{name}=Keyword") for name in SEARCH_ATTRIBUTES]
    return ProcessSpec(
        name="temporal",
        command=(
            *(str(find_binary("temporal")), "server", "start-dev", "--ip", HOST),
            *("--port", str(frontend), "--ui-port", str(ui)),
            *("--http-port", str(http), "--metrics-port", str(metrics)),
            *("--db-filename", str(directory / "temporal.db"), "--log-level", "error"),
            *(part for attribute in attributes for part in attribute),
        ),
        ready=answers(http, "/api/v1/namespaces/default"),
    )


@asynccontextmanager
async def temporal_server(directory: Path) -> AsyncIterator[TemporalAddress]:
    """Run Temporal alone for the length of a `with` block."""
    ports = free_ports(PORTS)
    async with running(ManagedProcess(spec=temporal_spec(directory, ports), directory=directory)):
        yield temporal_address(ports)
