"""How fast the registry publishes, wakes its waiters, and takes artifacts in.

`python benchmarks/registry.py [--quick] [--json]`. PostgreSQL, the registry's HTTP service and an S3
server run on this machine. Waiters are connections of a second process that long-poll one target; a
change's way is timed from the call that publishes it until the last of them has its whole answer. A push
(hashing, upload, manifest) is compared with `boto3.upload_file` and with SHA-256 of the same file.
"""

import argparse
import asyncio
import hashlib
import json
import os
import re
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
from _waiters import waiting

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.push import push_artifact
from weightshift.artifacts.s3 import S3ObjectStore
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.manifest import ArtifactRecord, Precision, WeightFormat
from weightshift.contracts.target import Publication
from weightshift.local.ports import free_ports
from weightshift.local.postgres import PostgresAddress, postgres_server
from weightshift.local.processes import ManagedProcess, ProcessSpec, answers, python_module, running
from weightshift.local.s3 import BUCKET, s3_server
from weightshift.registry.migrate import migrate
from weightshift.registry.store import PostgresRegistry
from weightshift.registry.tokens import EVERY, Role, issue_token

MEBIBYTE = 1 << 20
OPEN_FILES = 16_384
PATIENCE = 60.0
_WAITING = re.compile(r"^weightshift_registry_waiting_clients (\S+)$", re.MULTILINE)
SERVICE = Service(model="ranker", environment="benchmark")


@dataclass(frozen=True, kw_only=True)
class Live:
    """The database's address, the registry on it, and the HTTP service in front of it."""

    database: PostgresAddress
    registry: PostgresRegistry
    port: int
    process: ManagedProcess

    def cpu_seconds(self) -> float:
        """Return the processor time that the HTTP service has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def live_registry(directory: Path) -> AsyncIterator[Live]:
    """Run the database and the HTTP service."""
    (port,) = free_ports(1)
    async with postgres_server(directory) as database:
        await migrate(owner_dsn=database.owner_dsn, application_role=database.application_role)
        spec = ProcessSpec(
            name="registry",
            command=python_module("weightshift.registry.service"),
            environment={
                "WEIGHTSHIFT_REGISTRY_DSN": database.application_dsn,
                "WEIGHTSHIFT_REGISTRY_PORT": str(port),
            },
            ready=answers(port, "/healthz"),
        )
        async with running(ManagedProcess(spec=spec, directory=directory)) as process:
            registry = await PostgresRegistry.connect(dsn=database.application_dsn, timeout=30.0)
            yield Live(database=database, registry=registry, port=port, process=process)
            await registry.close()


async def make_ready(registry: PostgresRegistry, service: Service) -> None:
    """Register and approve an artifact of a service."""
    record = ArtifactRecord(
        model=service.model,
        artifact_id="v1",
        manifest_uri="none",
        manifest_sha256="a" * 64,
        feature_schema="none",
    )
    await registry.register_artifact(record, operator="ada")
    await registry.approve_artifact(service.model, "v1", operator="bob")


async def publish(registry: PostgresRegistry, service: Service, number: int) -> None:
    """Publish the next revision."""
    await registry.publish(
        Publication(
            service=service,
            cohort=Cohort.STABLE,
            artifact_id="v1",
            fence=Fence(epoch=0, sequence=number),
            operation_id=f"{service}/{number}",
            release_id="benchmark",
            operator="ada",
        )
    )


async def publications_per_second(registry: PostgresRegistry, services: list[Service], each: int) -> float:
    """Publish one after the other for each service, all services at once."""
    for service in services:
        await make_ready(registry, service)

    async def publish_all(service: Service) -> None:
        for number in range(1, each + 1):
            await publish(registry, service, number)

    started = time.perf_counter()
    await asyncio.gather(*(publish_all(service) for service in services))
    return len(services) * each / (time.perf_counter() - started)


async def time_fan_out(live: Live, waiters: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds until the last waiter had a change, and the service's own per change."""
    service = SERVICE.model_copy(update={"model": f"fan-out-{waiters}"})
    await make_ready(live.registry, service)
    dsn = live.database.application_dsn
    runtime = await issue_token(
        dsn=dsn,
        role=Role.RUNTIME,
        subject="benchmark",
        model=service.model,
        environment=service.environment,
    )
    metrics = await issue_token(
        dsn=dsn, role=Role.METRICS, subject="benchmark", model=EVERY, environment=EVERY
    )
    milliseconds, busy = [], 0.0
    path = f"/v1/targets/{service}/stable"
    async with waiting(live.port, path, token=runtime, count=waiters) as crowd:
        for number in range(1, rounds + 1):
            await asyncio.to_thread(crowd.ask, number - 1)
            await until_all_wait(live.port, metrics, waiters)
            before, started = live.cpu_seconds(), time.monotonic()
            await publish(live.registry, service, number)
            arrivals = await asyncio.to_thread(crowd.arrivals)
            milliseconds.append((max(arrivals) - started) * 1_000)
            busy += live.cpu_seconds() - before
    return {
        f"fan_out_{waiters}_p50_ms": round(statistics.median(milliseconds), 1),
        f"fan_out_{waiters}_worst_ms": round(max(milliseconds), 1),
        f"fan_out_{waiters}_service_cpu_ms": round(busy * 1_000 / rounds, 1),
    }


async def until_all_wait(port: int, token: str, waiters: int) -> None:
    """Wait until the service says that everybody waits."""
    headers = {"authorization": f"Bearer {token}"}
    async with (
        asyncio.timeout(PATIENCE),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE) as client,
    ):
        while True:
            (count,) = _WAITING.findall((await client.get("/metrics")).text)
            if float(count) == waiters:
                return
            await asyncio.sleep(0.05)


def time_push(directory: Path, endpoint: str, mebibytes: int) -> dict[str, float]:
    """Return the seconds that a new file takes each way."""
    source = Path(tempfile.mkdtemp(dir=directory))
    path = source / "weights.bin"
    with path.open("wb") as target:
        for _ in range(mebibytes):
            target.write(os.urandom(MEBIBYTE))
    seconds = {}
    started = time.perf_counter()
    manifest = build_manifest(
        source,
        model="benchmark",
        artifact_id=source.name,
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="none",
        precision=Precision.FP32,
    )
    push_artifact(S3ObjectStore(bucket=BUCKET, endpoint=endpoint), source, manifest)
    seconds["push"] = time.perf_counter() - started
    client = boto3.client("s3", endpoint_url=endpoint)
    started = time.perf_counter()
    client.upload_file(str(path), BUCKET, f"raw/{source.name}")
    seconds["boto3"] = time.perf_counter() - started
    client.close()
    started = time.perf_counter()
    with path.open("rb") as content:
        hashlib.file_digest(content, "sha256")
    seconds["sha256"] = time.perf_counter() - started
    shutil.rmtree(source)
    return seconds


async def measure_pushes(directory: Path, *, mebibytes: int, rounds: int) -> dict[str, float]:
    """Compare the ways in turns."""
    async with s3_server(directory) as address:
        os.environ.update(address.environment)
        taken = [
            await asyncio.to_thread(time_push, directory, address.endpoint, mebibytes) for _ in range(rounds)
        ]
    figures = {
        f"{way}_mib_per_s": round(mebibytes / statistics.median(one[way] for one in taken))
        for way in ("push", "boto3", "sha256")
    }
    ratios = [one["push"] / (one["boto3"] + one["sha256"]) for one in taken]
    return {**figures, "push_ratio_to_hash_and_upload": round(statistics.median(ratios), 3)}


async def measure(*, quick: bool) -> dict[str, float]:
    """Take every figure in turn."""
    each, rounds, mebibytes, pushes = (50, 5, 32, 3) if quick else (400, 21, 256, 5)
    directory = Path(tempfile.mkdtemp(prefix="weightshift-benchmark-"))
    figures: dict[str, float] = {}
    try:
        async with live_registry(directory) as live:
            for label, environments in (("one_environment", 1), ("eight_environments", 8)):
                services = [
                    Service(model=f"{label}-{number}", environment=f"{label}-{number % environments}")
                    for number in range(8)
                ]
                rate = await publications_per_second(live.registry, services, each)
                figures[f"publications_per_s_eight_models_in_{label}"] = round(rate)
            alone = [SERVICE]
            figures["publications_per_s_one_model"] = round(
                await publications_per_second(live.registry, alone, each)
            )
            for waiters in (500, 2_000):
                figures |= await time_fan_out(live, waiters, rounds)
        figures |= await measure_pushes(directory, mebibytes=mebibytes, rounds=pushes)
    finally:
        shutil.rmtree(directory)
    return figures


def bar(value: float, limit: float) -> dict[str, Any]:
    """Return a bar's value, limit and whether it is met."""
    return {"value": value, "bar": limit, "ok": value <= limit}


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller files")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    # Two thousand connections at both ends; the service inherits the limit.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    figures = asyncio.run(measure(quick=arguments.quick))
    bars = {"fan_out_500_p50_ms": bar(figures["fan_out_500_p50_ms"], 100)}
    for name, figure in figures.items():
        print(f"{name:50} {figure}")
    for name, result in bars.items():
        print(f"{name:50} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "registry", "figures": figures, "bars": bars}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
