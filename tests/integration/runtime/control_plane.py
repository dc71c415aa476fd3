"""The registry that the instances follow, the artifacts it knows, and how the tests publish to it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import uvicorn

from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.artifacts.signing_keys import KeyRole, SigningKey
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, Precision, WeightFormat
from weightshift.contracts.target import Publication, Target
from weightshift.local.traffic_check import Expectations
from weightshift.registry.memory import MemoryRegistry

SERVICE = Service(model="ranker", environment="test")
DEADLINE = 30.0
CI_KEY = SigningKey.generate(KeyRole.ARTIFACT)
RELEASE_KEY = SigningKey.generate(KeyRole.RELEASE)


@dataclass(frozen=True)
class Artifacts:
    store: Path
    records: dict[str, ArtifactRecord]
    expectations: Expectations


class Server(uvicorn.Server):
    """Leaves the signals to the tests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Control:
    """The registry, and how the tests publish to it."""

    registry: MemoryRegistry
    url: str
    token: str
    operations: int = 0

    async def publish(
        self, artifact_id: str, *, raise_serve_floor: bool = False, cohort: Cohort = Cohort.STABLE
    ) -> Target:
        self.operations += 1
        return await self.registry.publish(
            Publication(
                service=SERVICE,
                cohort=cohort,
                artifact_id=artifact_id,
                raise_serve_floor=raise_serve_floor,
                fence=Fence(epoch=0, sequence=self.operations),
                operation_id=f"operation-{self.operations}",
                release_id="release",
                operator="test",
            )
        )

    async def add(self, artifacts: Artifacts, directory: Path, *, architecture: str, schema: str) -> None:
        """Push, register and approve what is in a directory, under the directory's name."""
        manifest = build_manifest(
            directory,
            model=SERVICE.model,
            artifact_id=directory.name,
            runtime=WeightFormat.SAFETENSORS,
            feature_schema=schema,
            precision=Precision.FP32,
            architecture=architecture,
        )
        record = push_artifact(FileObjectStore(root=artifacts.store), directory, manifest, signing_key=CI_KEY)
        await self.registry.register_artifact(record, operator="test")
        await self.registry.approve_artifact(SERVICE.model, directory.name, operator="test")

    async def report(self) -> InstanceReport:
        (state,) = await self.registry.instances(SERVICE, lost_after=timedelta(seconds=DEADLINE))
        return state.report
