"""The real process: keys it must have, and addresses that nothing but its settings may choose."""

import asyncio
import contextlib
import hashlib
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from weightshift.artifacts.base import manifest_key
from weightshift.artifacts.file import FileObjectStore
from weightshift.contracts.instance import CandidatePhase
from weightshift.contracts.manifest import ArtifactRecord

SETTINGS = {
    "WEIGHTSHIFT_RUNTIME_MODEL": "ranker",
    "WEIGHTSHIFT_RUNTIME_ENVIRONMENT": "test",
    "WEIGHTSHIFT_RUNTIME_COHORT": "stable",
    "WEIGHTSHIFT_RUNTIME_INSTANCE_ID": "stable-0",
    "WEIGHTSHIFT_RUNTIME_ADMIN_TOKEN": "a-token-for-tests",
    "WEIGHTSHIFT_RUNTIME_DATA_PORT": "0",
    "WEIGHTSHIFT_RUNTIME_ADMIN_PORT": "0",
}

PLACES = ("path", "sha256", "field", "file field", "base artifact", "label")


@pytest.mark.parametrize("insecure", ["", "0"])
def test_without_accepted_keys_the_process_does_not_start(tmp_path: Path, insecure: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "runtime"],
        env=SETTINGS
        | {
            "WEIGHTSHIFT_RUNTIME_INSECURE_UNSIGNED": insecure,
            "WEIGHTSHIFT_RUNTIME_CACHE_DIR": str(tmp_path / "cache"),
            "WEIGHTSHIFT_STORE_URL": f"file://{tmp_path}/store",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 2
    assert "WEIGHTSHIFT_RUNTIME_ARTIFACT_KEYS_FILE" in finished.stderr
    assert "Traceback" not in finished.stderr


@contextlib.asynccontextmanager
async def trap() -> AsyncIterator[tuple[str, list[object]]]:
    """Listen where nobody may connect, and note who does."""
    callers: list[object] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", callers


def store_manifest(store: Path, document: dict[str, Any]) -> str:
    content = rfc8785.dumps(document)
    digest = hashlib.sha256(content).hexdigest()
    FileObjectStore(root=store).put_bytes(manifest_key("ranker", digest), content)
    return digest


def manifest_naming(url: str, place: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "model": "ranker",
        "artifact_id": "evil",
        "runtime": "safetensors",
        "feature_schema": "ranker-v1",
        "precision": "fp32",
        "files": [{"path": "model.safetensors", "sha256": "0" * 64, "bytes": 8}],
    }
    match place:
        case "path":
            document["files"][0]["path"] = url
        case "sha256":
            document["files"][0]["sha256"] = url
        case "field":
            document["source"] = url
        case "file field":
            document["files"][0]["url"] = url
        case "base artifact":
            document["base_artifact_id"] = url
        case _:
            document["labels"] = {"source": url, "endpoint": url}
    return document


async def publish(bench: Any, control: Any, name: str, document: dict[str, Any], url: str) -> int:
    record = ArtifactRecord(
        model="ranker",
        artifact_id=name,
        manifest_uri=url,
        manifest_sha256=store_manifest(bench.artifacts.store, document),
        feature_schema="ranker-v1",
        signature_sha256=hashlib.sha256(name.encode()).hexdigest(),
    )
    await control.registry.register_artifact(record, operator="test")
    await control.registry.approve_artifact("ranker", name, operator="test")
    revision: int = (await control.publish(name)).revision
    return revision


async def test_an_address_in_a_manifest_or_a_record_is_never_followed(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    await control.publish("v41")
    async with trap() as (address, callers), bench.running(control, tmp_path) as runtime:
        await bench.until(runtime.is_ready)
        before = written(tmp_path)
        urls = (address, "http://169.254.169.254/latest/", "file:///etc/passwd")
        for number, (place, url) in enumerate(itertools.product(PLACES, urls)):
            document = manifest_naming(url, place)
            revision = await publish(bench, control, f"evil-{number}", document, url)

            async def has_failed(revision: int = revision) -> bool:
                candidate = (await control.report()).candidate
                return candidate is not None and (candidate.revision, candidate.phase) == (
                    revision,
                    CandidatePhase.FAILED,
                )

            await bench.until(has_failed)
            error = (await control.report()).candidate.error
            assert error.permanent
            assert error.type in ("InvalidManifest", "SignatureInvalid")
            assert url not in error.message
        assert await runtime.is_ready()
        assert callers == []
        assert written(tmp_path) == before


def written(cache: Path) -> set[Path]:
    """Return what is in the cache, but for what the process knows of its targets."""
    return {path for path in cache.rglob("*") if path.is_file() and path.parent.name != "targets"}
