"""The servers that `serving.py` compares: how each is installed, started, and given another model."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from _serving_model import DIRECTORY, MAX_BATCH, PORT

from weightshift.contracts.identity import Service
from weightshift.contracts.manifest import WeightFormat
from weightshift.local.lone_instance import LoneRegistry, lone_instance
from weightshift.local.ports import free_ports

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".weightshift/benchmarks"
SERVER_CORE = "0"
SERVICE = Service(model="ranker", environment="benchmark")
_INSTALL_SECONDS = 900
_STOP_SECONDS = 20.0
_PINNED = ("taskset", "-c", SERVER_CORE)


@dataclass(frozen=True)
class Rival:
    """A framework in an environment of its own, which shares only this project's torch."""

    name: str
    package: str
    command: tuple[str, ...]
    replacing: str
    path: str = "/predict"
    wire: str = "json"

    @property
    def directory(self) -> Path:
        """Where its environment is."""
        return ENVIRONMENTS / self.name

    def install(self) -> str | None:
        """Make its environment once; return why that was not possible, or None."""
        python = self.directory / "bin/python"
        done = self.directory / "installed"
        if done.exists() and done.read_text() == self.package:
            return None
        try:
            subprocess.run(
                [sys.executable, "-m", "venv", self.directory], check=True, timeout=_INSTALL_SECONDS
            )
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            packages = next(path for path in sys.path if path.endswith("site-packages"))
            link = self.directory / "lib" / version / "site-packages/torch_of_the_project.pth"
            link.write_text(packages + "\n")
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.package],
                check=True,
                timeout=_INSTALL_SECONDS,
                capture_output=True,
            )
        except (subprocess.SubprocessError, OSError) as error:
            return f"{self.package} could not be installed ({type(error).__name__})"
        done.write_text(self.package)
        return None

    @contextlib.asynccontextmanager
    async def serving(self, models: Mapping[str, Path]) -> AsyncIterator["RunningRival"]:
        """Run it for the length of a `with` block with the first of the models."""
        ports = free_ports(2)
        running = RunningRival(self, ports, list(models.values()))
        await running.start(0)
        try:
            yield running
        finally:
            await running.stop()


class RunningRival:
    """One rival's processes."""

    def __init__(self, rival: Rival, ports: Sequence[int], models: list[Path]) -> None:
        self._rival = rival
        self._port, self._second_port = ports
        self._models = models
        self._process: Process | None = None
        self.log = models[0].parent / f"{rival.name}.log"

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}{self._rival.path}"

    async def start(self, model: int) -> None:
        """Start it, in a session of its own so that all of it can be ended."""
        directory = self._models[model]
        binaries = self._rival.directory / "bin"
        if self._rival.name == "mlserver":
            _configure_mlserver(directory.parent / "mlserver", directory, self._port, self._second_port)
        environment = {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "HOME": str(directory.parent),
            "PYTHONPATH": f"{HERE}:{HERE.parent}",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_raylet_start_wait_time_s": "200",
            "BENTOML_DO_NOT_TRACK": "True",
            "DO_NOT_TRACK": "1",
            DIRECTORY: str(directory),
            PORT: str(self._port),
        }
        command = [part.format(port=self._port, work=directory.parent) for part in self._rival.command]
        self._process = await asyncio.create_subprocess_exec(
            *_PINNED,
            str(binaries / command[0]),
            *command[1:],
            env=environment,
            cwd=HERE,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=self.log.open("wb"),
            start_new_session=True,
        )

    async def stop(self) -> None:
        """End it and everything it started."""
        process = self._process
        assert process is not None
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        # What is left of its session; its id is the first process's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()

    async def replace(self) -> None:
        """Serve the second model instead, in the way this framework has for one replica."""
        assert self._process is not None
        if self._rival.name == "ray":
            assert self._process.stdin is not None
            self._process.stdin.write(f"{self._models[1]}\n".encode())
            await self._process.stdin.drain()
        elif self._rival.name == "mlserver":
            folder = self._models[1].parent / "mlserver"
            _configure_mlserver(folder, self._models[1], self._port, self._second_port)
            async with httpx.AsyncClient(timeout=60) as client:
                await client.post(f"http://127.0.0.1:{self._port}/v2/repository/models/ranker/load")
        else:
            await self.stop()
            await self.start(1)


def _configure_mlserver(folder: Path, model: Path, port: int, second_port: int) -> None:
    folder.mkdir(exist_ok=True)
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": second_port, "parallel_workers": 0}
    settings |= {"metrics_endpoint": None, "load_models_at_startup": True, "debug": False}
    (folder / "settings.json").write_text(json.dumps(settings))
    described = {
        "name": "ranker",
        "implementation": "_serving_mlserver.RankerModel",
        "max_batch_size": MAX_BATCH,
        "max_batch_time": 0.001,
        "parameters": {"uri": str(model)},
    }
    (folder / "model-settings.json").write_text(json.dumps(described))


RIVALS = (
    Rival("starlette", "starlette", ("python", "_serving_starlette.py"), "restart"),
    Rival("litserve", "litserve==0.2.19", ("python", "_serving_litserve.py"), "restart"),
    Rival(
        "bentoml",
        "bentoml==1.4.40",
        ("bentoml", "serve", "_serving_bentoml:RankerService", "--host", "127.0.0.1", "--port", "{port}"),
        "restart",
    ),
    Rival(
        "mlserver",
        "mlserver==1.7.1",
        ("mlserver", "start", "{work}/mlserver"),
        "its repository's load call",
        path="/v2/models/ranker/infer",
        wire="open-inference",
    ),
    Rival("ray", "ray[serve]==2.60.0", ("python", "_serving_ray.py"), "a new user_config"),
)


class RunningWeightshift:
    """A real instance and its registry."""

    def __init__(self, registry: LoneRegistry, url: str, second: str) -> None:
        self.url = url
        self._registry = registry
        self._second = second

    async def replace(self) -> None:
        """Release the second artifact."""
        await self._registry.release(self._second)


@dataclass(frozen=True)
class Weightshift:
    """This project's instance; over its own JSON, or over the Open Inference Protocol."""

    name: str = "weightshift"
    path: str = "/predict"
    wire: str = "json"
    replacing: str = "a release"

    def install(self) -> None:
        """Nothing is missing."""

    @contextlib.asynccontextmanager
    async def serving(self, models: Mapping[str, Path]) -> AsyncIterator[RunningWeightshift]:
        """Run it for the length of a `with` block with the first of the models."""
        first, second = models
        directory = models[first].parent / f"registry-{self.name}-{os.urandom(4).hex()}"
        directory.mkdir()
        registry = LoneRegistry(service=SERVICE, directory=directory)
        for path in models.values():
            await registry.push(path, feature_schema="ranker-v1", runtime=WeightFormat.SAFETENSORS)
        command = [*_PINNED, sys.executable, "-m", "runtime"]
        async with (
            registry.serving(),
            lone_instance(
                command, registry=registry, cache=directory / "cache", settings={"MAX_BATCH": str(MAX_BATCH)}
            ) as instance,
        ):
            await registry.release(first)
            yield RunningWeightshift(registry, instance.data_url + self.path, second)


SYSTEMS = (
    Weightshift(),
    Weightshift("weightshift-v2", "/v2/models/ranker/infer", "open-inference"),
    *RIVALS,
)
