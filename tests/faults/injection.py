"""What the fault tests of a whole stack share: artifacts that go wrong, and waiting for conditions."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import boto3
import httpx

from weightshift.artifacts.base import blob_key
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.configured_keys import artifact_signing_key
from weightshift.artifacts.open_store import open_store
from weightshift.artifacts.push import push_artifact
from weightshift.contracts.instance import CandidatePhase, InstanceState
from weightshift.contracts.manifest import ArtifactRecord, Precision, WeightFormat
from weightshift.contracts.release import ReleasePhase
from weightshift.contracts.traffic import MeshState
from weightshift.local.demo_models import ModelRecipe, build_models
from weightshift.local.live_service import LiveService
from weightshift.local.traffic_process import Figures, TrafficProcess
from weightshift.mesh.open_mesh import open_mesh
from weightshift.registry.postgres.targets import TARGET_CHANNEL
from weightshift.settings import MeshSettings, SigningSettings, StoreSettings

COMMAND = Path(sys.executable).parent / "weightshift"
CANARY = ("canary-0", "canary-1")
WEIGHTS = "model.safetensors"
Condition = Callable[[], Awaitable[bool]]


@contextlib.asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Fail when the block takes longer: every promise about a fault has a deadline."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"not within {time.monotonic() - started:.1f} s") from None


async def until(condition: Condition, *, seconds: float = 30.0) -> None:
    async with within(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


async def command(live: LiveService, *arguments: str, code: int = 0) -> Any:
    """Run the installed command, which has to end with `code`; returns the JSON it prints."""
    process = await asyncio.create_subprocess_exec(
        *(str(COMMAND), *arguments, "--json", "--dir", str(live.stack.directory)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=live.command_environment,
    )
    async with within(60):
        out, problem = await process.communicate()
    assert process.returncode == code, (out + problem).decode()
    return json.loads(out)


async def until_split(live: LiveService, canary: int) -> None:
    """Wait until the active release observes a stage and the mesh was read back at its weight."""

    async def is_there() -> bool:
        status = await live.client.status(live.stack.service)
        return (
            status.phase is ReleasePhase.OBSERVING
            and status.split is not None
            and status.split.canary == canary
        )

    await until(is_there, seconds=60)


async def until_served(live: LiveService, artifact_id: str, cohort: str) -> None:
    """Wait until every instance of a cohort reports that it serves an artifact, ready."""

    async def is_served() -> bool:
        states = [
            one for one in await live.registry.instances(live.stack.service) if one.report.cohort == cohort
        ]
        return bool(states) and all(_serves(one, artifact_id) for one in states)

    await until(is_served)


def _serves(state: InstanceState, artifact_id: str) -> bool:
    actual = state.report.actual
    return not state.lost and state.report.ready and actual is not None and actual.artifact_id == artifact_id


async def carried(live: LiveService) -> MeshState:
    """What the mesh is read back to do."""
    mesh = open_mesh(MeshSettings())
    try:
        return await mesh.read(live.stack.service)
    finally:
        await mesh.aclose()


async def is_answered_by(traffic: TrafficProcess, revision: int) -> None:
    """From now on one revision alone answers."""
    name = str(revision)

    def answered(figures: Figures) -> int:
        return int(figures["revisions"].get(name, {"requests": 0})["requests"])

    async def more(than: Figures) -> Figures:
        enough = than["requests"] + 20
        return await traffic.wait_for(lambda figures: figures["requests"] > enough, seconds=20)

    # The latest figures are older than this call, and the next ones may be on their way already.
    before = await more(await more(traffic.figures))
    after = await more(before)
    assert answered(after) - answered(before) == after["requests"] - before["requests"]


async def answers(url: str) -> int | None:
    """The status of one GET; None when nobody listens."""
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            return (await client.get(url)).status_code
    except httpx.TransportError:
        return None


async def answers_with(url: str, status: int) -> bool:
    return await answers(url) == status


async def is_loading(live: LiveService, instance: str, artifact_id: str) -> bool:
    for state in await live.registry.instances(live.stack.service):
        candidate = state.report.candidate
        if state.report.instance_id == instance and candidate is not None:
            return candidate.artifact_id == artifact_id and candidate.phase in (
                CandidatePhase.DOWNLOADING,
                CandidatePhase.VERIFYING,
                CandidatePhase.LOADING,
            )
    return False


async def metrics_of(live: LiveService, instance: str) -> str:
    """What one instance tells Prometheus."""
    token = (live.stack.directory / "secrets/runtime-admin").read_text().strip()
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        url = f"{live.stack.addresses.runtime_admins[instance]}/metrics"
        answer = await client.get(url, headers={"authorization": f"Bearer {token}"})
        answer.raise_for_status()
        return answer.text


async def pair(live: LiveService) -> tuple[str, str]:
    """Which of the two small models serves, and the other one."""
    serving = (await live.registry.targets(live.stack.service)).stable
    assert serving is not None
    return serving.artifact_id, "v42" if serving.artifact_id == "v41" else "v41"


@contextlib.asynccontextmanager
async def canary_with(live: LiveService, serving: str, variables: Mapping[str, str]) -> AsyncIterator[None]:
    """Run the idle canary with other settings for the length of the block."""

    async def restart(name: str, added: Mapping[str, str]) -> None:
        await live.stack.stop(name)
        await live.stack.start(name, added=added)

    await asyncio.gather(*(restart(name, variables) for name in CANARY))
    await until_served(live, serving, "canary")
    yield
    await asyncio.gather(*(restart(name, {}) for name in CANARY))
    await until_served(live, serving, "canary")


@contextlib.asynccontextmanager
async def noisy_notifications() -> AsyncIterator[None]:
    """Repeat every target notification many times, late ones and nonsense in between."""
    connection = await asyncpg.connect(os.environ["WEIGHTSHIFT_REGISTRY_DSN"])
    known = '{"model":"ranker","environment":"local"}'
    payloads = (known, known, '{"model":"other","environment":"local"}', "nonsense", known)

    async def repeat() -> None:
        while True:
            for payload in payloads:
                await connection.execute("SELECT pg_notify($1, $2)", TARGET_CHANNEL, payload)
            await asyncio.sleep(0.01)

    repeating = asyncio.create_task(repeat())
    try:
        yield
        assert not repeating.done(), "nothing was repeated"
    finally:
        repeating.cancel()
        await asyncio.gather(repeating, return_exceptions=True)
        await connection.close()


async def push_small_model(
    live: LiveService, artifact_id: str, *, seed: int, feature_schema: str = "ranker-v1"
) -> str:
    """Store and approve a small model of its own; returns the store's key of its weights."""
    directory = live.directory / "small"
    await asyncio.to_thread(
        build_models, directory, [ModelRecipe(artifact_id, hidden=(64, 32), seed=seed, steps=1)]
    )
    record, key = await asyncio.to_thread(_store, directory / artifact_id, feature_schema)
    await live.registry.register_artifact(record)
    await live.registry.approve_artifact(record.model, artifact_id)
    return key


def _store(directory: Path, feature_schema: str) -> tuple[ArtifactRecord, str]:
    manifest = build_manifest(
        directory,
        model="ranker",
        artifact_id=directory.name,
        runtime=WeightFormat.SAFETENSORS,
        feature_schema=feature_schema,
        precision=Precision.FP32,
        architecture="ranker",
    )
    signing_key = artifact_signing_key(SigningSettings())
    record = push_artifact(open_store(StoreSettings()), directory, manifest, signing_key=signing_key)
    (weights,) = (file for file in manifest.files if file.path == WEIGHTS)
    return record, blob_key(manifest.model, weights.sha256)


def overwrite(key: str, change: Callable[[bytes], bytes]) -> None:
    """Change an object in the store behind everybody's back."""
    settings = StoreSettings()
    bucket, _, prefix = settings.url.removeprefix("s3://").partition("/")
    client = boto3.session.Session().client("s3", endpoint_url=settings.endpoint)
    place = f"{prefix}/{key}" if prefix else key
    content = client.get_object(Bucket=bucket, Key=place)["Body"].read()
    client.put_object(Bucket=bucket, Key=place, Body=change(content))
