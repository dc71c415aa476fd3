"""Each embedded server alone, twice on the same state."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import boto3
import httpx
import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

from weightshift.local.postgres import APPLICATION_ROLE, OWNER_ROLE, postgres_server, prepare_postgres
from weightshift.local.prometheus import ScrapeTarget, prometheus_server
from weightshift.local.s3 import BUCKET, REGION, S3Address, s3_server
from weightshift.local.temporal import SEARCH_ATTRIBUTES, temporal_server


async def test_postgres_keeps_its_data_and_wants_a_password(tmp_path: Path) -> None:
    async with postgres_server(tmp_path) as first:
        connection = await asyncpg.connect(first.owner_dsn)
        await connection.execute("CREATE TABLE kept (value text)")
        await connection.execute("INSERT INTO kept VALUES ('yes')")
        await connection.close()
    async with postgres_server(tmp_path) as second:
        connection = await asyncpg.connect(second.owner_dsn)
        assert await connection.fetchval("SELECT value FROM kept") == "yes"
        assert await connection.fetchval("SELECT current_user") == OWNER_ROLE
        await connection.close()
        application = await asyncpg.connect(second.application_dsn)
        assert await application.fetchval("SELECT current_user") == APPLICATION_ROLE
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await application.fetchval("SELECT value FROM kept")
        await application.close()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(second.application_dsn, password="guess")


async def test_an_interrupted_preparation_is_begun_again(tmp_path: Path) -> None:
    preparing = asyncio.create_task(prepare_postgres(tmp_path))
    async with asyncio.timeout(10):
        while not (tmp_path / "postgres.new/PG_VERSION").exists():
            await asyncio.sleep(0.001)
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    async with postgres_server(tmp_path) as address:
        connection = await asyncpg.connect(address.application_dsn)
        await connection.close()


async def test_postgres_stops_while_a_client_is_connected(tmp_path: Path) -> None:
    async with postgres_server(tmp_path) as address:
        connection = await asyncpg.connect(address.application_dsn)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    await connection.close()


async def test_temporal_knows_the_search_attributes(tmp_path: Path) -> None:
    for _ in range(2):
        async with temporal_server(tmp_path) as address:
            client = await Client.connect(address.target)
            answer = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace="default")
            )
            assert set(SEARCH_ATTRIBUTES) <= set(answer.custom_attributes)


async def test_s3_keeps_its_objects_and_wants_its_keys(tmp_path: Path) -> None:
    async with s3_server(tmp_path) as address:
        await asyncio.to_thread(put, address, b"content")
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{address.endpoint}/{BUCKET}/key")).status_code == 403
    async with s3_server(tmp_path) as address:
        assert await asyncio.to_thread(get, address) == b"content"


async def test_prometheus_scrapes_with_credentials(tmp_path: Path) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue(maxsize=10)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if not seen.full():
            seen.put_nowait(request)
        body = b"weights_shifted_total 41\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        writer.close()

    credentials = tmp_path / "token"
    credentials.write_text("secret-token")
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = ScrapeTarget(job="runtime", instance="stable-0", port=port, credentials=credentials)
        async with prometheus_server(tmp_path, [target]) as url, httpx.AsyncClient(base_url=url) as client:
            async with asyncio.timeout(10):
                assert b"Bearer secret-token" in await seen.get()
                query = 'weights_shifted_total{job="runtime",instance="stable-0"}'
                while not (await client.get("/api/v1/query", params={"query": query})).json()["data"][
                    "result"
                ]:
                    await seen.get()


def put(address: S3Address, content: bytes) -> None:
    client = s3_client(address)
    client.put_object(Bucket=BUCKET, Key="key", Body=content)
    client.close()


def get(address: S3Address) -> bytes:
    client = s3_client(address)
    content = client.get_object(Bucket=BUCKET, Key="key")["Body"].read()
    client.close()
    return content


def s3_client(address: S3Address) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=address.endpoint,
        aws_access_key_id=address.access_key,
        aws_secret_access_key=address.secret_key,
        region_name=REGION,
    )
