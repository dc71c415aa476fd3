"""The worker of the crowd: the product's own activities and workflow, over a registry and a mesh in memory.

`python benchmarks/_crowd_worker.py TEMPORAL PROMETHEUS SERVICES`. Instances serve what is published at once.
"""

import asyncio
import re
import sys
import time
from datetime import timedelta

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities.prometheus import PrometheusReader
from weightshift.analysis.series import Series
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport, InstanceState, LoadedGeneration
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.plan import Plan
from weightshift.contracts.release import Admission, Completion, Outcome, ReleaseRequest
from weightshift.contracts.target import Publication, Target
from weightshift.contracts.traffic import MeshState
from weightshift.mesh.memory import MemoryMesh
from weightshift.registry.memory import MemoryRegistry
from weightshift.settings import MetricsSettings, RegistrySettings
from worker import Adapters, WorkerSettings, build_workers, prefer_short_pauses

ARTIFACTS = ("v41", "v42")
MODEL = "ranker"
SCRAPE_SECONDS = 10.0
_SPAN = re.compile(r"\[(\d+)ms\]$")
_ENVIRONMENT = re.compile(r'environment="([^"]+)"')
_READING_ON_MS = 60_000
"""What is read before the first interval is judged goes back further."""


def crowd(size: int) -> list[Service]:
    """The services that are released at the same time."""
    return [Service(model=MODEL, environment=f"crowd-{number}") for number in range(size)]


class TellingMesh(MemoryMesh):
    """A mesh that prints when (`time.monotonic`) a service was shown to have all its traffic on stable."""

    async def confirm(self, service: Service, state: MeshState) -> None:
        """Confirm, and print."""
        await super().confirm(service, state)
        if state.split.canary == 0:
            print(service.environment, time.monotonic(), flush=True)


class TellingReader(PrometheusReader):
    """A reader that prints each service whose judge has begun to read on from where it was."""

    def __init__(self, *, settings: MetricsSettings) -> None:
        super().__init__(settings=settings)
        self._told: set[str] = set()

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        """Read, and print."""
        found = await super().select(selector, end=end)
        span, environment = _SPAN.search(selector), _ENVIRONMENT.search(selector)
        if span and environment and int(span[1]) < _READING_ON_MS and environment[1] not in self._told:
            self._told.add(environment[1])
            print("judged", environment[1], flush=True)
        return found


class EagerRegistry(MemoryRegistry):
    """A registry whose instances serve what is published as soon as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[Service, dict[str, InstanceState]] = {}

    async def publish(self, publication: Publication) -> Target:
        """Publish, and have the instances of the cohort serve it."""
        target = await super().publish(publication)
        self.serve(publication.service, publication.cohort, target)
        return target

    async def instances(self, service: Service, *, lost_after: timedelta) -> tuple[InstanceState, ...]:
        """Return the instances of a service."""
        return tuple(self._states.get(service, {}).values())

    def serve(self, service: Service, cohort: Cohort, target: Target) -> None:
        """Have two instances of a cohort report that they serve a target."""
        for number in range(2):
            name = f"{cohort}-{number}"
            report = InstanceReport(
                instance_id=name,
                boot_id="1",
                service=service,
                cohort=cohort,
                ready=True,
                actual=_loaded(target),
            )
            known = self._states.setdefault(service, {})
            known[name] = InstanceState(report=report, lost=False, age_seconds=0.0)


async def _serve_first(registry: EagerRegistry, service: Service) -> None:
    """Have a service's first release behind it."""
    request = ReleaseRequest(
        release_id=f"first:{service}", service=service, artifact_id="v41", plan=Plan(), operator="benchmark"
    )
    admitted = await registry.admit(Admission(request=request, run_id="none"))
    for sequence, cohort in enumerate(Cohort):
        fence = Fence(epoch=admitted.epoch, sequence=sequence)
        await registry.publish(
            Publication(
                service=service,
                cohort=cohort,
                artifact_id=request.artifact_id,
                expected_revision=0,
                fence=fence,
                operation_id=f"{request.release_id}:{sequence}",
                release_id=request.release_id,
                operator=request.operator,
            )
        )
    await registry.complete(
        Completion(
            service=service,
            release_id=request.release_id,
            outcome=Outcome.PROMOTED,
            reason="first",
            fence=Fence(epoch=admitted.epoch, sequence=len(Cohort)),
        )
    )


def _loaded(target: Target) -> LoadedGeneration:
    return LoadedGeneration(
        revision=target.revision,
        artifact_id=target.artifact_id,
        manifest_sha256=target.manifest_sha256,
        feature_schema=target.feature_schema,
        generation=target.revision,
    )


async def main(temporal: str, prometheus: str, size: int) -> None:
    """Run both workers until the process is ended."""
    registry = EagerRegistry()
    for artifact_id in ARTIFACTS:
        await registry.register_artifact(
            ArtifactRecord(
                model=MODEL,
                artifact_id=artifact_id,
                manifest_uri=f"memory://{artifact_id}",
                manifest_sha256=artifact_id.encode().hex().ljust(64, "0"),
                feature_schema="ranker-v1",
            ),
            operator="benchmark",
        )
        await registry.approve_artifact(MODEL, artifact_id, operator="benchmark")
    for service in crowd(size):
        await _serve_first(registry, service)
    client = await Client.connect(temporal, data_converter=pydantic_data_converter)
    reader = TellingReader(
        settings=MetricsSettings(prometheus_url=prometheus, scrape_interval=SCRAPE_SECONDS)
    )
    workers = build_workers(
        client,
        adapters=Adapters(registry=registry, mesh=TellingMesh(), reader=reader),
        settings=WorkerSettings(),
        registry_settings=RegistrySettings(),
    )
    async with workers[0], workers[1]:
        await asyncio.Event().wait()


if __name__ == "__main__":
    prefer_short_pauses()
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
