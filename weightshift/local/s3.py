"""An S3 server with one bucket for artifacts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from weightshift.local.binaries import find_binary
from weightshift.local.files import secret
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, running

PORTS = 10
"""S3 itself, then master, volume, filer and admin, and the internal port of each of the five."""

BUCKET = "artifacts"
REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class S3Address:
    """Where objects are kept, and the keys of the only account."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point our processes and boto3 at this server."""
        return {
            "WEIGHTSHIFT_STORE_URL": f"s3://{BUCKET}",
            "WEIGHTSHIFT_STORE_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": REGION,
        }


def s3_address(directory: Path, ports: Sequence[int]) -> S3Address:
    """Return the address of the server on these ports; its keys are made on first use."""
    key = secret(directory / "secrets/s3")
    return S3Address(endpoint=f"http://{HOST}:{ports[0]}", access_key="weightshift", secret_key=key)


def s3_spec(directory: Path, ports: Sequence[int]) -> ProcessSpec:
    """Describe the server; its objects in `directory` outlive it."""
    address = s3_address(directory, ports)
    roles = ("s3", "master", "volume", "filer", "admin")
    numbered = zip(roles, ports[:5], ports[5:], strict=True)
    listen = [(f"-{role}.port={port}", f"-{role}.port.grpc={internal}") for role, port, internal in numbered]
    return ProcessSpec(
        name="s3",
        command=(
            *(
                str(find_binary("weed")),
                "-logtostderr=true",
                "mini",
                f"-dir={directory / 's3'}",
                f"-bucket={BUCKET}",
            ),
            *(f"-ip={HOST}", f"-ip.bind={HOST}", *(part for pair in listen for part in pair)),
            *("-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.telemetry=false", "-volume.preStopSeconds=0"),
        ),
        environment={
            "AWS_ACCESS_KEY_ID": address.access_key,
            "AWS_SECRET_ACCESS_KEY": address.secret_key,
        },
        ready=lambda: asyncio.to_thread(_has_bucket, address),
    )


@asynccontextmanager
async def s3_server(directory: Path) -> AsyncIterator[S3Address]:
    """Run the S3 server alone for the length of a `with` block."""
    ports = free_ports(PORTS)
    prepare_s3(directory)
    try:
        async with running(ManagedProcess(spec=s3_spec(directory, ports), directory=directory)):
            yield s3_address(directory, ports)
    finally:
        remove_s3_sockets(ports)


def prepare_s3(directory: Path) -> None:
    """Make the directory of the objects."""
    (directory / "s3").mkdir(parents=True, exist_ok=True)


def remove_s3_sockets(ports: Sequence[int]) -> None:
    """Remove the sockets that the server leaves in the machine's temporary directory."""
    for port in ports:
        for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108  (the server's choice)
            socket.unlink(missing_ok=True)


def _has_bucket(address: S3Address) -> bool:
    client = boto3.client(
        "s3",
        endpoint_url=address.endpoint,
        aws_access_key_id=address.access_key,
        aws_secret_access_key=address.secret_key,
        region_name=REGION,
        config=Config(connect_timeout=1, read_timeout=1, retries={"total_max_attempts": 1}, proxies={}),
    )
    try:
        client.head_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):
        return False
    finally:
        client.close()
    return True
