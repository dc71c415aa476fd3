import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

import pytest
import uvicorn

from tests.integration.runtime.control_plane import CI_KEY, RELEASE_KEY, SERVICE, Artifacts, Control, Server
from tests.integration.runtime.runtime_process import ADMIN_TOKEN, Runtime, running, until
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.file import FileObjectStore
from weightshift.artifacts.push import push_artifact
from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.artifacts.signing_keys import KeyRole, VerificationKeys
from weightshift.contracts.manifest import Precision, WeightFormat
from weightshift.local.demo_models import ModelRecipe, expected_answers, train, write_artifact
from weightshift.local.traffic_check import Expectations
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import Grant, MemoryTokens, Role

RECIPES = (
    ModelRecipe("v41", hidden=(64, 32), seed=41, steps=5),
    ModelRecipe("v42", hidden=(64, 32), seed=42, steps=5),
    ModelRecipe("v45", hidden=(64, 32), seed=45, steps=1, features=82),
)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    root = tmp_path_factory.mktemp("artifacts")
    store = FileObjectStore(root=root / "store")
    models = [train(recipe) for recipe in RECIPES]
    records = {}
    for model in models:
        name = model.recipe.artifact_id
        write_artifact(model, root / name)
        manifest = build_manifest(
            root / name,
            model=SERVICE.model,
            artifact_id=name,
            runtime=WeightFormat.SAFETENSORS,
            feature_schema="ranker-v1",
            precision=Precision.FP32,
            architecture="ranker",
        )
        records[name] = push_artifact(store, root / name, manifest, signing_key=CI_KEY)
    expectations = root / "expectations.json"
    expectations.write_text(json.dumps(expected_answers(models[:2])), encoding="utf-8")
    return Artifacts(root / "store", records, Expectations.read(expectations))


@pytest.fixture
async def control(artifacts: Artifacts) -> AsyncIterator[Control]:
    accepted = VerificationKeys.from_pem(RELEASE_KEY.public_pem(), role=KeyRole.RELEASE, source="test")
    registry = MemoryRegistry(
        authoriser=ReleaseAuthoriser(key=RELEASE_KEY, accepted=accepted, validity=timedelta(days=1))
    )
    tokens = MemoryTokens()
    token = tokens.issue(
        Grant(role=Role.RUNTIME, subject="runtime", model=SERVICE.model, environment=SERVICE.environment)
    )
    for record in artifacts.records.values():
        await registry.register_artifact(record, operator="test")
        await registry.approve_artifact(record.model, record.artifact_id, operator="test")
    app = create_app(registry=registry, tokens=tokens, bell=registry.bell)
    server = Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Control(registry, f"http://127.0.0.1:{port}", token)
    server.should_exit = True
    await serving


class Bench:
    """Starts instances of the artifacts, of one control plane or of none."""

    def __init__(self, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        self.admin_token = ADMIN_TOKEN
        self.until = until

    def running(self, control: Control, cache: Path, **settings: str) -> AbstractAsyncContextManager[Runtime]:
        return running(
            self.artifacts, cache, registry_url=control.url, registry_token=control.token, **settings
        )

    def alone(self, cache: Path) -> AbstractAsyncContextManager[Runtime]:
        return running(self.artifacts, cache, registry_url="http://127.0.0.1:9", registry_token="none")


@pytest.fixture(scope="module")
def bench(artifacts: Artifacts) -> Bench:
    return Bench(artifacts)


@pytest.fixture(scope="module")
async def unpublished(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    """An instance whose registry is not there and that has nothing to serve."""
    async with bench.alone(tmp_path_factory.mktemp("cache")) as runtime:
        yield runtime
