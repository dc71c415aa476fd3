"""The whole stack: up, broken and mended, down; and under its supervisor."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from weightshift.errors import InvalidInput, LocalStackError
from weightshift.local import control
from weightshift.local.identity import identity_of
from weightshift.local.stack import DEFAULT_SERVICE, LocalStack
from weightshift.local.state import read_state, read_supervisor
from weightshift.registry.client import RegistryClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalStack]:
    async with LocalStack(tmp_path_factory.mktemp("stack"), instances_per_cohort=1) as stack:
        yield stack


async def test_prometheus_scrapes_every_process_with_metrics(stack: LocalStack) -> None:
    expected = {"stable-0", "canary-0", "registry", "worker", "envoy"}
    async with httpx.AsyncClient(base_url=stack.addresses.prometheus) as client, asyncio.timeout(20):
        while True:
            answer = await client.get("/api/v1/query", params={"query": "up == 1"})
            if {sample["metric"]["instance"] for sample in answer.json()["data"]["result"]} == expected:
                return
            await asyncio.sleep(0.1)


async def test_everything_can_be_killed_and_started_again(stack: LocalStack) -> None:
    before = {name: stack.pid(name) for name in stack.names}
    addresses = stack.addresses
    for name in stack.names:
        await stack.kill(name)
        assert stack.pid(name) is None
        await stack.start(name)
        await stack.wait_ready(name)
    after = {name: stack.pid(name) for name in stack.names}
    assert None not in after.values()
    assert all(before[name] != after[name] for name in stack.names)
    assert stack.addresses == addresses


async def test_an_unknown_process_is_named(stack: LocalStack) -> None:
    with pytest.raises(InvalidInput, match="stable-0"):
        await stack.kill("stable-7")


async def test_a_failure_ends_everything_that_was_started(tmp_path: Path) -> None:
    (tmp_path / "envoy/routes").mkdir(parents=True)
    (tmp_path / "envoy/routes/route.json").write_text("{}")
    with pytest.raises(LocalStackError, match=r"(?s)mesh-agent ended.*not one of ours"):
        await LocalStack(tmp_path, instances_per_cohort=1).up()
    assert (tmp_path / "logs/temporal.log").exists()
    assert processes_in(tmp_path) == set()


async def test_a_supervised_stack_is_controlled_from_outside(tmp_path: Path) -> None:
    try:
        first = await control.up(tmp_path)
        assert all(first.processes.values())
        assert len(first.processes) == 12
        assert await control.up(tmp_path) == first
        assert await reporting(control.stack_environment(tmp_path)) == 4

        processes = running(tmp_path)
        for name in ("worker", "stable-0"):
            os.kill(processes[name], signal.SIGKILL)
        await until_ended(tmp_path, {"worker", "stable-0"})
        assert await control.up(tmp_path) == first
        after = running(tmp_path)
        assert {name for name in after if after[name] != processes[name]} == {"worker", "stable-0"}
        assert await reporting(control.stack_environment(tmp_path)) == 4

        assert not (await control.down(tmp_path)).running
        assert processes_in(tmp_path) == set()

        await interrupted(tmp_path, signal.SIGKILL)
        assert (await control.up(tmp_path)).addresses == first.addresses
    finally:
        await control.down(tmp_path)
    assert processes_in(tmp_path) == set()


async def test_a_supervised_stack_ends_with_its_owner(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec("sleep", "300")
    try:
        status = await control.up(tmp_path, owner_pid=owner.pid)
        assert status.running
        owner.kill()
        await owner.wait()
        await until_nothing_runs(tmp_path)
        assert not control.status(tmp_path).running
    finally:
        await control.down(tmp_path)


async def test_an_interrupt_while_starting_leaves_nothing(tmp_path: Path) -> None:
    starting = asyncio.create_task(control.up(tmp_path))
    async with asyncio.timeout(30):
        while not (tmp_path / "logs/postgres.log").exists():
            await asyncio.sleep(0.01)
    supervisor = read_supervisor(tmp_path)
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGINT)
    with pytest.raises(LocalStackError):
        await starting
    assert processes_in(tmp_path) == set()


async def test_why_a_supervised_stack_does_not_start_is_told(tmp_path: Path) -> None:
    (tmp_path / "envoy/routes").mkdir(parents=True)
    (tmp_path / "envoy/routes/route.json").write_text("{}")
    with pytest.raises(LocalStackError, match=r"(?s)mesh-agent ended.*not one of ours"):
        await control.up(tmp_path)
    assert processes_in(tmp_path) == set()


async def interrupted(directory: Path, number: signal.Signals) -> None:
    """Start a stack, and end its supervisor by force."""
    status = await control.up(directory)
    assert status.supervisor_pid is not None
    os.kill(status.supervisor_pid, number)
    await until_nothing_runs(directory)
    assert not control.status(directory).running


def running(directory: Path) -> dict[str, int]:
    """Return the id of every process of a supervised stack."""
    state = read_state(directory)
    assert state is not None
    return {name: process.pid for name, process in state.processes.items()}


async def until_ended(directory: Path, names: set[str]) -> None:
    async with asyncio.timeout(10):
        while {name for name, lives in control.status(directory).processes.items() if not lives} != names:
            await asyncio.sleep(0.02)


async def reporting(environment: dict[str, str]) -> int:
    """Return how many instances of the local service the registry knows to be alive."""
    url, token = (environment[f"WEIGHTSHIFT_REGISTRY_{name}"] for name in ("URL", "TOKEN"))
    async with RegistryClient(url=url, token=token) as registry:
        return sum(not state.lost for state in await registry.instances(DEFAULT_SERVICE))


async def until_nothing_runs(directory: Path) -> None:
    async with asyncio.timeout(30):
        while processes_in(directory):
            await asyncio.sleep(0.05)


def processes_in(directory: Path) -> set[int]:
    """Return the living processes that work in a stack's directory, as all of its processes do."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            working = (entry / "cwd").readlink()
        except OSError:
            continue
        if working.is_relative_to(directory) and identity_of(int(entry.name)):
            found.add(int(entry.name))
    return found
