import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from runtime.admin import create_admin_app
from runtime.app import create_data_app
from runtime.architectures import Ranker, RankerNetwork
from runtime.generation_holder import Generation, LoadedModel
from runtime.instance import Instance
from runtime.settings import RuntimeSettings
from weightshift.artifacts.base import blob_key, manifest_key
from weightshift.artifacts.release_authorisation import ReleaseAuthoriser
from weightshift.contracts.identity import Cohort, Fence, Service
from weightshift.contracts.instance import InstanceReport
from weightshift.contracts.manifest import ArtifactRecord, Manifest, ManifestFile, Precision, WeightFormat
from weightshift.contracts.target import Publication, Target
from weightshift.errors import UnknownArtifact
from weightshift.registry.client import RegistryClient
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.service import create_app
from weightshift.registry.tokens import Grant, MemoryTokens, Role

HIDDEN = (8, 4)
SERVICE = Service(model="ranker", environment="test")
ADMIN_TOKEN = "a-token-for-tests"
DEADLINE = 30.0


class DictStore:
    """An object store in a dictionary; `chunk_bytes` small enough that files come in pieces."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.read: list[str] = []

    def uri(self, key: str) -> str:
        return f"memory:///{key}"

    def exists(self, key: str) -> bool:
        return key in self.objects

    def put_bytes(self, key: str, content: bytes) -> None:
        self.objects.setdefault(key, content)

    def put_file(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        sha256: str | None = None,
    ) -> None:
        self.put_bytes(key, path.read_bytes())

    def stream(
        self, key: str, *, chunk_bytes: int = 1 << 20, offset: int = 0, length: int | None = None
    ) -> Iterator[bytes]:
        self.read.append(key)
        if key not in self.objects:
            raise UnknownArtifact
        content = self.objects[key][offset:][:length]
        for start in range(0, len(content), 512):
            yield content[start : start + 512]


class ArtifactBuilder:
    """Writes ranker artifacts into a store; every part can be replaced by a broken one."""

    def __init__(self, store: DictStore) -> None:
        self.store = store

    def weights(self, seed: int = 1, hidden: tuple[int, ...] = HIDDEN) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return {name: value.detach().clone() for name, value in RankerNetwork(hidden).state_dict().items()}

    def push(
        self,
        artifact_id: str = "v1",
        *,
        seed: int = 1,
        weights: dict[str, Tensor] | bytes | None = None,
        files: dict[str, bytes | None] | None = None,
        path: str = "model.safetensors",
        **fields: Any,
    ) -> Manifest:
        tensors = self.weights(seed) if weights is None else weights
        content = {
            path: tensors if isinstance(tensors, bytes) else save(tensors),
            "config.json": json.dumps({"hidden": list(HIDDEN)}).encode(),
            "normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [1.0] * 88}).encode(),
        }
        content |= {name: body for name, body in (files or {}).items() if body is not None}
        for name in [name for name, body in (files or {}).items() if body is None]:
            del content[name]
        manifest = Manifest(
            **{
                "model": "ranker",
                "artifact_id": artifact_id,
                "runtime": WeightFormat.SAFETENSORS,
                "feature_schema": "ranker-v1",
                "precision": Precision.FP32,
                "files": tuple(
                    ManifestFile(path=name, sha256=hashlib.sha256(body).hexdigest(), bytes=len(body))
                    for name, body in content.items()
                ),
                **fields,
            }
        )
        for body in content.values():
            self.store.put_bytes(blob_key("ranker", hashlib.sha256(body).hexdigest()), body)
        self.store.put_bytes(manifest_key("ranker", manifest.digest()), manifest.canonical_bytes())
        return manifest


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def artifacts(store: DictStore) -> ArtifactBuilder:
    return ArtifactBuilder(store)


@pytest.fixture
def make_target() -> Callable[..., Target]:
    def make(revision: int = 1, manifest: Manifest | None = None, **fields: Any) -> Target:
        return Target(
            **{
                "service": Service(model="ranker", environment="test"),
                "cohort": Cohort.STABLE,
                "revision": revision,
                "artifact_id": manifest.artifact_id if manifest else f"v{revision}",
                "manifest_sha256": manifest.digest() if manifest else f"{revision:064x}",
                "feature_schema": "ranker-v1",
                **fields,
            }
        )

    return make


@pytest.fixture
def make_generation(make_target: Callable[..., Target]) -> Callable[..., Generation]:
    def make(
        revision: int = 1, target: Target | None = None, loaded: LoadedModel | None = None
    ) -> Generation:
        target = target or make_target(revision)
        if loaded is None:
            torch.manual_seed(revision)
            architecture = Ranker()
            loaded = LoadedModel(
                manifest_sha256=target.manifest_sha256,
                feature_schema=target.feature_schema,
                architecture=architecture,
                module=RankerNetwork(HIDDEN),
                resources=architecture.resources(
                    {
                        "config.json": json.dumps({"hidden": list(HIDDEN)}).encode(),
                        "normalisation.json": json.dumps({"mean": [0.0] * 88, "std": [1.0] * 88}).encode(),
                    }
                ),
                device="cpu",
                allocated_bytes=0,
            )
        return Generation(target=target, loaded=loaded, runtime_build="test")

    return make


class World:
    """A registry, a store and a cache directory; instances come and go."""

    def __init__(self, root: Path, store: Any, authoriser: ReleaseAuthoriser | None = None) -> None:
        self.root = root
        self.store = store
        self.registry = MemoryRegistry(authoriser=authoriser)
        tokens = MemoryTokens()
        self._token = tokens.issue(
            Grant(role=Role.RUNTIME, subject="runtime", model="ranker", environment="test")
        )
        self._transport = httpx.ASGITransport(
            create_app(registry=self.registry, tokens=tokens, bell=self.registry.bell)
        )
        self._operations = 0

    async def publish(self, manifest: Manifest, signature: str | None = None, **fields: Any) -> Target:
        record = ArtifactRecord(
            model="ranker",
            artifact_id=manifest.artifact_id,
            manifest_uri="",
            manifest_sha256=manifest.digest(),
            feature_schema=manifest.feature_schema,
            signature_sha256=signature,
        )
        await self.registry.register_artifact(record, operator="test")
        await self.registry.approve_artifact("ranker", manifest.artifact_id, operator="test")
        self._operations += 1
        return await self.registry.publish(
            Publication(
                service=SERVICE,
                cohort=Cohort.STABLE,
                artifact_id=manifest.artifact_id,
                fence=Fence(epoch=0, sequence=self._operations),
                operation_id=f"operation-{self._operations}",
                release_id="release",
                operator="test",
                **fields,
            )
        )

    async def report(self) -> InstanceReport | None:
        states = await self.registry.instances(SERVICE, lost_after=timedelta(seconds=DEADLINE))
        return states[0].report if states else None

    def create(self, **settings: Any) -> Instance:
        client = RegistryClient(url="http://registry", token=self._token, transport=self._transport)
        defaults = {
            "model": "ranker",
            "environment": "test",
            "cohort": "stable",
            "instance_id": "stable-0",
            "admin_token": ADMIN_TOKEN,
            "cache_dir": self.root,
            "heartbeat": 0.1,
            "watch_wait": 5,
            "memory_margin": 0,
            "standby_bytes": 0,
            "retry_initial": 0.001,
            "retry_maximum": 0.01,
            "propagation_seconds": 0,
            "drain_deadline": 5,
            "insecure_unsigned": True,
        }
        return Instance(settings=RuntimeSettings(**{**defaults, **settings}), store=self.store, client=client)

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[Instance]:
        instance = self.create(**settings)
        instance.start()
        try:
            yield instance
        finally:
            await instance.close()

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        async with asyncio.timeout(DEADLINE):
            while True:
                result = condition()
                if result if isinstance(result, bool) else await result:
                    return
                await asyncio.sleep(0.002)

    def serving(self, instance: Instance, revision: int) -> Callable[[], bool]:
        def is_serving() -> bool:
            current = instance.holder.current
            return instance.is_ready and current is not None and current.revision == revision

        return is_serving

    def data_client(self, instance: Instance) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(create_data_app(instance))
        return httpx.AsyncClient(transport=transport, base_url="http://data")

    def admin_client(self, instance: Instance) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(create_admin_app(instance)),
            base_url="http://admin",
            headers={"authorization": f"Bearer {ADMIN_TOKEN}"},
        )


@pytest.fixture
def make_world(tmp_path: Path, store: DictStore) -> Callable[..., World]:
    def make(authoriser: ReleaseAuthoriser) -> World:
        return World(tmp_path, store, authoriser)

    return make


@pytest.fixture
def world(tmp_path: Path, store: DictStore) -> World:
    return World(tmp_path, store)
