"""PostgreSQL: its own cluster on a loopback port, with an owner and an application role."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from weightshift.errors import LocalStackError
from weightshift.local.binaries import postgres_binary
from weightshift.local.files import secret, write_private
from weightshift.local.identity import identity_of
from weightshift.local.ports import HOST, free_ports
from weightshift.local.processes import ManagedProcess, ProcessSpec, guarded, running

DATABASE = "weightshift"
OWNER_ROLE = "weightshift_owner"
APPLICATION_ROLE = "weightshift_application"
_INITDB_TIMEOUT = 60.0
_CONNECT_TIMEOUT = 2.0

# PostgreSQL refuses to run as root; this account exists everywhere and owns nothing.
_UNPRIVILEGED = "nobody"


@dataclass(frozen=True, kw_only=True)
class PostgresAddress:
    """Where the database is: one connection string per role. Both hold passwords."""

    port: int
    owner_dsn: str = field(repr=False)
    application_dsn: str = field(repr=False)
    application_role: str = APPLICATION_ROLE


def postgres_address(directory: Path, port: int) -> PostgresAddress:
    """Return the address of the cluster kept in `directory`; passwords are made on first use."""
    owner, application = _passwords(directory)
    return PostgresAddress(
        port=port,
        owner_dsn=_dsn(OWNER_ROLE, owner, port, DATABASE),
        application_dsn=_dsn(APPLICATION_ROLE, application, port, DATABASE),
    )


def postgres_spec(directory: Path, port: int) -> ProcessSpec:
    """Describe the server of the cluster in `directory`, which `prepare_postgres` must have made."""
    return ProcessSpec(
        name="postgres",
        command=(
            str(postgres_binary("postgres")),
            *("-D", str(directory / "postgres"), "-p", str(port)),
            *("-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories="),
            # Inside the cluster, where nothing is left behind when the server is killed.
            *("-c", "dynamic_shared_memory_type=mmap"),
        ),
        ready=lambda: _accepts_connections(directory, port),
        run_as=_user(),
        # SIGTERM would wait for every client to leave.
        stop_signal=signal.SIGINT,
    )


async def prepare_postgres(directory: Path) -> None:
    """Make the cluster, unless there is one. Raises `LocalStackError` when `initdb` fails."""
    cluster, password, user = directory / "postgres.new", directory / "postgres-password", _user()
    if (directory / "postgres").exists():
        _remove_stale_lock(directory / "postgres")
        return
    shutil.rmtree(cluster, ignore_errors=True)
    cluster.mkdir(parents=True, mode=0o700)
    write_private(password, _passwords(directory)[0])
    if user is not None:
        for path in (cluster, password):
            shutil.chown(path, user)
    try:
        await _initdb(cluster, password, user)
    finally:
        password.unlink()
    # Only a complete cluster gets the name that says so.
    cluster.rename(directory / "postgres")


async def create_database(directory: Path, port: int) -> None:
    """Make the database and the application role, unless they exist."""
    owner, application = _passwords(directory)
    connection = await asyncpg.connect(_dsn(OWNER_ROLE, owner, port, "postgres"), timeout=_CONNECT_TIMEOUT)
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", APPLICATION_ROLE):
            # The password is ours, from an alphabet without quotes.
            await connection.execute(f"CREATE ROLE {APPLICATION_ROLE} LOGIN PASSWORD '{application}'")
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()


@asynccontextmanager
async def postgres_server(directory: Path) -> AsyncIterator[PostgresAddress]:
    """Run PostgreSQL alone, with an empty database, for the length of a `with` block."""
    (port,) = free_ports(1)
    await prepare_postgres(directory)
    async with running(ManagedProcess(spec=postgres_spec(directory, port), directory=directory)):
        await create_database(directory, port)
        yield postgres_address(directory, port)


async def _initdb(cluster: Path, password: Path, user: str | None) -> None:
    command = (
        *(str(postgres_binary("initdb")), "-D", str(cluster), "-U", OWNER_ROLE),
        *("--auth=scram-sha-256", f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"),
    )
    process = await asyncio.create_subprocess_exec(
        *guarded(command, run_as=user),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cluster,
    )
    try:
        async with asyncio.timeout(_INITDB_TIMEOUT):
            output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise LocalStackError(f"initdb failed in {cluster}; it said:\n{output.decode(errors='replace')}")


async def _accepts_connections(directory: Path, port: int) -> bool:
    owner, _ = _passwords(directory)
    try:
        connection = await asyncpg.connect(
            _dsn(OWNER_ROLE, owner, port, "postgres"), timeout=_CONNECT_TIMEOUT
        )
    except (OSError, asyncpg.PostgresError, TimeoutError):
        return False
    await connection.close()
    return True


def _remove_stale_lock(cluster: Path) -> None:
    """Remove the lock of a server that was killed: a process that nobody has reaped looks alive to it."""
    lock = cluster / "postmaster.pid"
    with suppress(FileNotFoundError, ValueError):
        if identity_of(int(lock.read_text().splitlines()[0])) is None:
            lock.unlink()


def _user() -> str | None:
    return _UNPRIVILEGED if os.geteuid() == 0 else None


def _passwords(directory: Path) -> tuple[str, str]:
    return secret(directory / "secrets/postgres-owner"), secret(directory / "secrets/postgres-application")


def _dsn(role: str, password: str, port: int, database: str) -> str:
    return f"postgresql://{role}:{password}@{HOST}:{port}/{database}"
