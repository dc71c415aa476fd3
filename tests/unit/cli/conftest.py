import argparse
import asyncio
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import pytest

from weightshift.artifacts.base import ObjectStore
from weightshift.artifacts.file import FileObjectStore
from weightshift.cli.context import Connections
from weightshift.cli.main import main
from weightshift.client import ReleaseClient
from weightshift.contracts.identity import Service
from weightshift.contracts.release import (
    Intervention,
    ReleasePhase,
    ReleaseRecord,
    ReleaseRequest,
    ReleaseStatus,
    RollbackRequest,
    Step,
)
from weightshift.contracts.target import Targets
from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import WeightshiftError
from weightshift.mesh.envoy import EnvoyMesh
from weightshift.mesh.memory import MemoryMesh
from weightshift.registry.client import RegistryClient

SERVICE = Service(model="ranker", environment="test")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def release_status(**changes: Any) -> ReleaseStatus:
    return ReleaseStatus(
        release_id="R1",
        service=SERVICE,
        artifact_id="v2",
        phase=ReleasePhase.OBSERVING,
        stage_weight=5,
        split=TrafficSplit.with_canary(5),
        way_back="instant",
        steps=(Step(at=NOW, text="admitted"), Step(at=NOW, text="traffic 5 %")),
    ).model_copy(update=changes)


class Result(NamedTuple):
    code: int
    out: str
    err: str


class FakeReleases:
    """Stands in for Temporal: answers with `statuses` in turn and keeps what it was asked."""

    def __init__(self) -> None:
        self.statuses = [release_status()]
        self.calls: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.active: str | None = "v2"
        self.polling = 1
        self.refusal_of: WeightshiftError | None = None
        self.refusals: tuple[ReleaseRecord, ...] = ()
        self.followed: list[str] = []
        self.admission: Exception | asyncio.Event | None = None

    async def start(self, request: ReleaseRequest) -> str:
        self._note("start", request)
        return "run-of-this-start"

    async def admitted(self, service: Service, run_id: str) -> None:
        assert run_id == "run-of-this-start"
        if isinstance(self.admission, asyncio.Event):
            await self.admission.wait()
        elif self.admission is not None:
            raise self.admission

    async def status(self, service: Service) -> ReleaseStatus:
        self._note("status", service)
        return self.statuses[-1]

    async def wait(
        self, service: Service, *, on_status: Callable[[ReleaseStatus], None], run_id: str
    ) -> ReleaseStatus:
        self._note("wait", service)
        self.followed.append(run_id)
        for status in self.statuses:
            on_status(status)
        return self.statuses[-1]

    async def active_artifact(self, service: Service) -> str | None:
        return self.active

    async def rollback(self, service: Service, request: RollbackRequest) -> ReleaseStatus:
        self._note("rollback", service, request)
        return self.statuses[-1]

    async def refusal(self, service: Service) -> WeightshiftError | None:
        return self.refusal_of

    async def refused(self, service: Service) -> tuple[ReleaseRecord, ...]:
        self._note("refused", service)
        return self.refusals

    async def workers(self) -> int:
        self._note("workers")
        return self.polling

    async def result(self, service: Service) -> None:
        self._note("result", service)

    async def approve(self, service: Service, approval_id: str) -> ReleaseStatus:
        self._note("approve", service, approval_id)
        return self.statuses[-1]

    async def pause(self, service: Service, by: Intervention) -> ReleaseStatus:
        self._note("pause", service, by)
        return self.statuses[-1]

    async def resume(self, service: Service, by: Intervention) -> ReleaseStatus:
        self._note("resume", service, by)
        return self.statuses[-1]

    async def promote(self, service: Service, by: Intervention) -> ReleaseStatus:
        self._note("promote", service, by)
        return self.statuses[-1]

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure


class FakeRegistry:
    """Stands in for the registry's HTTP client: answers with `answers[method]`, keeps every call."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "targets": Targets(),
            "releases": (),
            "record_broken_glass": None,
        }
        self.calls: list[tuple[Any, ...]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.calls.append(("closed",))

    def __getattr__(self, method: str) -> Any:
        async def call(*positional: Any, **named: Any) -> Any:
            self.calls.append((method, *positional, *named.values()))
            answer = self.answers[method]
            if isinstance(answer, Exception):
                raise answer
            return answer(*positional) if callable(answer) else answer

        return call


class ClosableMesh(MemoryMesh):
    closed = False

    async def aclose(self) -> None:
        self.closed = True


class FakeConnections(Connections):
    def __init__(self, directory: Path) -> None:
        self.fake_registry = FakeRegistry()
        self.fake_releases = FakeReleases()
        self.directory = directory
        self.fake_mesh = ClosableMesh()

    def registry(self, arguments: argparse.Namespace) -> RegistryClient:
        return cast(RegistryClient, self.fake_registry)

    async def releases(self, arguments: argparse.Namespace) -> ReleaseClient:
        return cast(ReleaseClient, self.fake_releases)

    def mesh(self) -> EnvoyMesh:
        return cast(EnvoyMesh, self.fake_mesh)

    def store(self, arguments: argparse.Namespace) -> ObjectStore:
        return FileObjectStore(root=self.directory / "store")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    before = dict(os.environ)
    for name in before:
        if name.startswith("WEIGHTSHIFT_"):
            del os.environ[name]
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def connections(tmp_path: Path) -> FakeConnections:
    return FakeConnections(tmp_path)


@pytest.fixture
def registry(connections: FakeConnections) -> FakeRegistry:
    return connections.fake_registry


@pytest.fixture
def releases(connections: FakeConnections) -> FakeReleases:
    return connections.fake_releases


@pytest.fixture
def run(connections: FakeConnections, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command against the fakes."""

    def run_command(*arguments: str) -> Result:
        code = main([*arguments], connections=connections)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def mesh(connections: FakeConnections) -> ClosableMesh:
    return connections.fake_mesh


@pytest.fixture
def make_status() -> Callable[..., ReleaseStatus]:
    return release_status
