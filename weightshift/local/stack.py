"""Everything Weightshift needs, on one machine, as children of the calling process."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

from weightshift.contracts.identity import Cohort, Service
from weightshift.errors import InvalidInput, LocalStackError, WeightshiftError
from weightshift.local.addresses import Addresses
from weightshift.local.envoy import envoy_address, envoy_spec, mesh_agent_spec
from weightshift.local.files import secret
from weightshift.local.instances import wait_for_reports
from weightshift.local.keys import authorisation_environment, signing_environment
from weightshift.local.layout import STATEFUL, Layout, choose_layout
from weightshift.local.ports import remembered_ports
from weightshift.local.postgres import create_database, postgres_address, postgres_spec, prepare_postgres
from weightshift.local.processes import ManagedProcess, PortTaken, ProcessSpec
from weightshift.local.prometheus import ScrapeTarget, prometheus_spec
from weightshift.local.s3 import prepare_s3, remove_s3_sockets, s3_address, s3_spec
from weightshift.local.services import (
    ADMIN_TOKEN,
    METRICS_TOKEN,
    OPERATOR_TOKEN,
    control_environment,
    prepare_registry,
    registry_spec,
    runtime_spec,
    worker_spec,
)
from weightshift.local.temporal import temporal_spec
from weightshift.registry.client import RegistryClient

DEFAULT_SERVICE = Service(model="ranker", environment="local")
_ATTEMPTS = 3
_REPORT_SECONDS = 60.0


class LocalStack:
    """A complete stack whose state lives in one directory.

    Start it from the main thread: the kernel ends the processes together with the thread that
    started them, so that they never outlive it. Methods raise `LocalStackError` when a process fails,
    and `InvalidInput` for a name that is none.
    """

    def __init__(
        self, directory: Path, *, service: Service = DEFAULT_SERVICE, instances_per_cohort: int = 2
    ) -> None:
        self.directory = directory.resolve()
        self.service = service
        self._instances_per_cohort = instances_per_cohort
        self._layout = self._choose_layout()
        self._processes: dict[str, ManagedProcess] = {}

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    @property
    def addresses(self) -> Addresses:
        """Where everything answers."""
        return self._layout.addresses

    @property
    def names(self) -> tuple[str, ...]:
        """Every process, by the name that the other methods take."""
        return self._layout.names

    @property
    def environment(self) -> dict[str, str]:
        """The variables for the worker and the command line, tokens and keys included; valid once up."""
        envoy = envoy_address(self.directory, self._layout.envoy)
        addresses = self.addresses
        return {
            **control_environment(
                self.directory,
                postgres_address(self.directory, self._layout.postgres),
                registry_url=addresses.registry,
                temporal=addresses.temporal,
                prometheus_url=addresses.prometheus,
            ),
            **signing_environment(self.directory),
            **authorisation_environment(self.directory),
            "WEIGHTSHIFT_MESH_AGENT_URL": envoy.agent_url,
            "WEIGHTSHIFT_MESH_AGENT_TOKEN": envoy.agent_token,
            **s3_address(self.directory, self._layout.s3).environment,
        }

    async def up(self) -> None:
        """Start everything and wait until it is ready and every instance reports; on failure, end it all."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._start_all()
            except PortTaken:
                await self.down()
                if attempt == _ATTEMPTS:
                    raise
                self._layout = self._choose_layout()
            except BaseException:
                await self.down()
                raise
            else:
                return

    async def down(self) -> None:
        """Stop everything: first what uses the databases, then the databases."""
        stateful = [process for name, process in self._processes.items() if name in STATEFUL]
        others = [process for name, process in self._processes.items() if name not in STATEFUL]
        for group in (others, stateful):
            await asyncio.gather(*(process.stop() for process in group))
        self._processes.clear()
        remove_s3_sockets(self._layout.s3)

    async def start(self, name: str, *, added: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start one process again, on its old ports, and wait until it is ready.

        `added` are variables for this run alone.
        """
        await self._process(name).start(added=added)

    async def mend(self) -> None:
        """Start every process that has ended again, and wait until every instance reports."""
        try:
            for name in self.names:  # what others need comes first
                if self.pid(name) is None:
                    await self.start(name)
            await self._wait_for_reports()
        except WeightshiftError:
            raise
        except Exception as error:
            raise _unforeseen(error) from error

    async def stop(self, name: str) -> None:
        """Stop one process gracefully; killed when its deadline passes."""
        await self._process(name).stop()

    async def wait_ended(self, name: str) -> int:
        """Wait until one process ends by itself, and return its exit status."""
        return await self._process(name).wait_ended()

    async def kill(self, name: str) -> None:
        """End one process with SIGKILL."""
        await self._process(name).kill()

    async def wait_ready(self, name: str) -> None:
        """Wait until one process is ready."""
        await self._process(name).wait_ready()

    def pid(self, name: str) -> int | None:
        """Return a process's id; None while it does not run."""
        return self._process(name).pid

    def _choose_layout(self) -> Layout:
        return choose_layout(
            self._instances_per_cohort, partial(remembered_ports, self.directory / "ports.json")
        )

    def _process(self, name: str) -> ManagedProcess:
        if name not in self._processes:
            raise InvalidInput(
                f"{name} is not a running part of the stack; use one of {', '.join(self.names)}"
            )
        return self._processes[name]

    async def _start_all(self) -> None:
        ready = {name: asyncio.Event() for name in self.names}
        try:
            async with asyncio.TaskGroup() as group:
                for name in self.names:
                    group.create_task(self._start_one(name, ready), name=f"start {name}")
        except BaseExceptionGroup as failures:
            # The others were only cancelled because of the first.
            first = failures.exceptions[0]
            if isinstance(first, WeightshiftError):
                raise first from None
            raise _unforeseen(first) from first
        await self._wait_for_reports()

    async def _wait_for_reports(self) -> None:
        names = [instance.name for instance in self._layout.instances]
        async with self._registry() as registry:
            await wait_for_reports(registry, self.service, names, seconds=_REPORT_SECONDS)

    def _registry(self) -> RegistryClient:
        return RegistryClient(url=self.addresses.registry, token=secret(self.directory / OPERATOR_TOKEN))

    async def _start_one(self, name: str, ready: dict[str, asyncio.Event]) -> None:
        for needed in self._layout.dependencies(name):
            await ready[needed].wait()
        await self._prepare(name)
        self._processes[name] = ManagedProcess(spec=self._spec(name), directory=self.directory)
        await self._processes[name].start()
        if name == "postgres":
            await create_database(self.directory, self._layout.postgres)
        ready[name].set()

    async def _prepare(self, name: str) -> None:
        if name == "postgres":
            await prepare_postgres(self.directory)
        elif name == "registry":
            database = postgres_address(self.directory, self._layout.postgres)
            await prepare_registry(self.directory, database, self.service)
        elif name == "s3":
            prepare_s3(self.directory)

    def _spec(self, name: str) -> ProcessSpec:
        """Describe a process; what it depends on runs already."""
        directory, layout = self.directory, self._layout
        database = postgres_address(directory, layout.postgres)
        envoy = envoy_address(directory, layout.envoy)
        ports = {cohort: [instance.port for instance in layout.cohort(cohort)] for cohort in Cohort}
        shared: dict[str, Callable[[], ProcessSpec]] = {
            "postgres": partial(postgres_spec, directory, layout.postgres),
            "temporal": partial(temporal_spec, directory, layout.temporal),
            "s3": partial(s3_spec, directory, layout.s3),
            "registry": partial(registry_spec, directory, database, layout.registry),
            "mesh-agent": partial(mesh_agent_spec, directory, envoy, self.service),
            "envoy": partial(
                envoy_spec, directory, envoy, stable=ports[Cohort.STABLE], canary=ports[Cohort.CANARY]
            ),
            "prometheus": partial(prometheus_spec, directory, layout.prometheus, self._scrape_targets()),
            "worker": lambda: worker_spec(self.environment, layout.worker_metrics),
        }
        return shared[name]() if name in shared else self._runtime_spec(name)

    def _runtime_spec(self, name: str) -> ProcessSpec:
        (instance,) = (candidate for candidate in self._layout.instances if candidate.name == name)
        return runtime_spec(
            self.directory,
            instance,
            self.service,
            registry_url=self.addresses.registry,
            store=s3_address(self.directory, self._layout.s3).environment,
        )

    def _scrape_targets(self) -> tuple[ScrapeTarget, ...]:
        layout = self._layout
        runtimes = (
            ScrapeTarget(
                job="runtime",
                instance=instance.name,
                port=instance.admin_port,
                credentials=self.directory / ADMIN_TOKEN,
            )
            for instance in layout.instances
        )
        return (
            *runtimes,
            ScrapeTarget(
                job="registry",
                instance="registry",
                port=layout.registry,
                credentials=self.directory / METRICS_TOKEN,
            ),
            ScrapeTarget(job="worker", instance="worker", port=layout.worker_metrics),
            ScrapeTarget(job="envoy", instance="envoy", port=layout.envoy[1], path="/stats/prometheus"),
        )


def _unforeseen(error: BaseException) -> LocalStackError:
    """Return what is told of a process that cannot be started, for a reason that is not one of ours."""
    return LocalStackError(f"the stack could not start: {type(error).__name__}: {error}")
