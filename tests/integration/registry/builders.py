"""Messages for tests of the registry."""

import secrets
from datetime import timedelta
from typing import Any

from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport, LoadedGeneration
from weightshift.contracts.manifest import ArtifactRecord
from weightshift.contracts.release import Admission, Completion, Outcome, ReleaseRequest
from weightshift.contracts.target import Publication
from weightshift.contracts.wave import WaveRequest, WaveRevocation
from weightshift.registry.base import Registry


def record_of(service: Service, artifact_id: str = "v41", content: str = "a") -> ArtifactRecord:
    return ArtifactRecord(
        model=service.model,
        artifact_id=artifact_id,
        manifest_uri=f"file:///{artifact_id}",
        manifest_sha256=content * 64,
        feature_schema="features-1",
    )


def publication_of(service: Service, **changes: Any) -> Publication:
    values = {
        "service": service,
        "cohort": Cohort.CANARY,
        "artifact_id": "v41",
        "expected_revision": 0,
        "fence": Fence(epoch=1, sequence=1),
        "operation_id": secrets.token_hex(8),
        "release_id": "R1",
        "operator": "ada",
    }
    return Publication.model_validate(values | changes)


def own(service: Service, release_id: str) -> str:
    """Release ids are unique in the whole database, which other tests use too."""
    return f"{service.environment}-{release_id}"


def admission_of(service: Service, release_id: str, **changes: Any) -> Admission:
    values = {
        "release_id": own(service, release_id),
        "service": service,
        "artifact_id": "v41",
        "operator": "ada",
    }
    return Admission(request=ReleaseRequest.model_validate(values | changes), run_id="run-1")


def completion_of(service: Service, release_id: str, outcome: Outcome = Outcome.PROMOTED) -> Completion:
    return Completion(
        service=service,
        release_id=own(service, release_id),
        outcome=outcome,
        reason="all stages healthy",
        fence=Fence(epoch=1, sequence=9),
    )


def report_of(
    service: Service, instance_id: str = "gpu-0", *, revision: int = 0, artifact_id: str = "v41", **more: Any
) -> InstanceReport:
    actual = LoadedGeneration(
        revision=revision,
        artifact_id=artifact_id,
        manifest_sha256="a" * 64,
        feature_schema="features-1",
        generation=1,
    )
    values = {"boot_id": "1", "cohort": Cohort.CANARY, "actual": actual if revision else None}
    return InstanceReport(instance_id=instance_id, service=service, **(values | more))


def wave_of(service: Service, sequence: int, **changes: Any) -> WaveRequest:
    values = {
        "service": service,
        "revision": 1,
        "instance_ids": ("gpu-0", "gpu-1"),
        "lifetime": timedelta(minutes=5),
        "fence": Fence(epoch=1, sequence=sequence),
        "operation_id": f"R1/{sequence}",
        "release_id": "R1",
        "operator": "ada",
    }
    return WaveRequest.model_validate(values | changes)


def revocation_of(service: Service, sequence: int, **changes: Any) -> WaveRevocation:
    values = {
        "service": service,
        "fence": Fence(epoch=1, sequence=sequence),
        "operation_id": f"R1/{sequence}",
        "release_id": "R1",
        "operator": "ada",
        "reason": "gpu-0 failed",
    }
    return WaveRevocation.model_validate(values | changes)


async def make_ready(registry: Registry, service: Service, *artifact_ids: str) -> None:
    for artifact_id in artifact_ids:
        await registry.register_artifact(record_of(service, artifact_id), operator="ada")
        await registry.approve_artifact(service.model, artifact_id, operator="bob")
