"""Prometheus, scraping everything of the local stack once a second."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weightshift.local.binaries import prometheus_binary
from weightshift.local.files import write_private
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, running


@dataclass(frozen=True, kw_only=True)
class ScrapeTarget:
    """One process with metrics on a loopback port; `credentials` names a file with a bearer token."""

    job: str
    instance: str
    port: int
    path: str = "/metrics"
    credentials: Path | None = None


def prometheus_spec(directory: Path, port: int, targets: Sequence[ScrapeTarget]) -> ProcessSpec:
    """Describe the server; its samples in `directory` outlive it."""
    configuration = directory / "prometheus.yml"
    # JSON is YAML, and needs no escaping of its own.
    write_private(configuration, json.dumps(scrape_configuration(targets), indent=2))
    return ProcessSpec(
        name="prometheus",
        command=(
            str(prometheus_binary(directory / "prometheus-package")),
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            "--storage.tsdb.retention.time=1d",
            f"--web.listen-address={HOST}:{port}",
        ),
        ready=answers(port, "/-/ready"),
    )


def scrape_configuration(targets: Sequence[ScrapeTarget]) -> dict[str, Any]:
    """Return Prometheus's configuration: one entry per target, labelled `job` and `instance`. Pure."""
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "900ms"},
        "scrape_configs": [_scrape(target) for target in targets],
    }


@asynccontextmanager
async def prometheus_server(directory: Path, targets: Sequence[ScrapeTarget] = ()) -> AsyncIterator[str]:
    """Run Prometheus alone for the length of a `with` block; yields its address."""
    (port,) = free_ports(1)
    spec = prometheus_spec(directory, port, targets)
    async with running(ManagedProcess(spec=spec, directory=directory)):
        yield f"http://{HOST}:{port}"


def _scrape(target: ScrapeTarget) -> dict[str, Any]:
    entry: dict[str, Any] = {
        # Names must be unique, so the job label is set on the target instead.
        "job_name": f"{target.job}/{target.instance}",
        "metrics_path": target.path,
        "static_configs": [
            {
                "targets": [f"{HOST}:{target.port}"],
                "labels": {"job": target.job, "instance": target.instance},
            }
        ],
    }
    if target.credentials is not None:
        entry["authorization"] = {"credentials_file": str(target.credentials)}
    return entry
