"""Fetching and verifying an artifact, against a raw download and against hashing alone.

`python benchmarks/fetch.py [--quick] [--json]`. An S3 server on this machine holds the artifact. Three
ways are taken in turns: the runtime's download (size and SHA-256 while writing, fsync of everything,
marker), `boto3.download_file` with one fsync, and SHA-256 over the bytes in memory. Each runs in a
process of its own, so that its greatest memory can be compared between file sizes.
"""

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3

from runtime.download import Downloader
from weightshift.artifacts.base import blob_key
from weightshift.artifacts.build import build_manifest
from weightshift.artifacts.push import push_artifact
from weightshift.artifacts.s3 import S3ObjectStore
from weightshift.contracts.manifest import Manifest, Precision, WeightFormat
from weightshift.local.s3 import BUCKET, s3_server

MEBIBYTE = 1 << 20
MODEL = "benchmark"
STEP_SECONDS = 300


def fetch(manifest: Manifest, endpoint: str, directory: Path) -> None:
    """Download and verify as an instance does."""
    store = S3ObjectStore(bucket=BUCKET, endpoint=endpoint)
    downloader = Downloader(store=store, max_artifact_bytes=1 << 40)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        downloader.download(MODEL, manifest.digest(), descriptor, lambda done, total: None)
    finally:
        os.close(descriptor)


def download(manifest: Manifest, endpoint: str, directory: Path) -> None:
    """Download with boto3 and make it durable; nothing is verified."""
    client = boto3.client("s3", endpoint_url=endpoint)
    for file in manifest.files:
        path = directory / file.sha256
        client.download_file(BUCKET, blob_key(MODEL, file.sha256), str(path))
        with path.open("rb") as source:
            os.fsync(source.fileno())
    client.close()


def hash_alone(manifest: Manifest, _: str, __: Path) -> None:
    """Hash as many bytes, without reading them from anywhere."""
    piece = bytes(MEBIBYTE)
    hasher = hashlib.sha256()
    for _number in range(manifest.total_bytes // MEBIBYTE):
        hasher.update(piece)


WAYS: dict[str, Callable[[Manifest, str, Path], None]] = {
    "fetch": fetch,
    "boto3": download,
    "sha256": hash_alone,
}


def run_way(way: str, manifest: Manifest, endpoint: str, directory: Path, answer: Connection) -> None:
    """Take one way in this process; send its seconds and this process's greatest memory in bytes."""
    started = time.perf_counter()
    WAYS[way](manifest, endpoint, directory)
    seconds = time.perf_counter() - started
    answer.send((seconds, greatest_memory()))


def greatest_memory() -> int:
    """Return the most bytes this process has had in memory; `getrusage` would count its parent's too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def in_a_process(way: str, manifest: Manifest, endpoint: str, directory: Path) -> tuple[float, int]:
    """Take one way in a new process and clean up after it."""
    target = Path(tempfile.mkdtemp(dir=directory))
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=run_way, args=(way, manifest, endpoint, target, theirs))
    process.start()
    theirs.close()
    if not mine.poll(STEP_SECONDS):
        process.kill()
    seconds, memory = mine.recv()
    process.join()
    shutil.rmtree(target)
    return seconds, memory


def push(directory: Path, mebibytes: int, endpoint: str) -> Manifest:
    """Store an artifact of random bytes."""
    source = directory / f"random-{mebibytes}"
    source.mkdir()
    with (source / "weights.bin").open("wb") as target:
        for _ in range(mebibytes):
            target.write(os.urandom(MEBIBYTE))
    manifest = build_manifest(
        source,
        model=MODEL,
        artifact_id=source.name,
        runtime=WeightFormat.SAFETENSORS,
        feature_schema="none",
        precision=Precision.FP32,
    )
    push_artifact(S3ObjectStore(bucket=BUCKET, endpoint=endpoint), source, manifest)
    return manifest


def compare(directory: Path, endpoint: str, *, small: int, large: int, rounds: int) -> dict[str, Any]:
    """Take every way in turns with the large artifact, and fetch the small one for its memory."""
    manifest = push(directory, large, endpoint)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    memory: dict[str, int] = dict.fromkeys(WAYS, 0)
    for _ in range(rounds):
        for way in WAYS:
            took, most = in_a_process(way, manifest, endpoint, directory)
            seconds[way].append(took)
            memory[way] = max(memory[way], most)
    _, least = in_a_process("fetch", push(directory, small, endpoint), endpoint, directory)
    slower = [max(pair) for pair in zip(seconds["boto3"], seconds["sha256"], strict=True)]
    ratios = [ours / raw for ours, raw in zip(seconds["fetch"], slower, strict=True)]
    return {
        "mebibytes": large,
        "rounds": rounds,
        **{f"{way}_mib_per_s": round(large / statistics.median(taken)) for way, taken in seconds.items()},
        "fetch_ratio": round(statistics.median(ratios), 3),
        "fetch_memory_mib": memory["fetch"] >> 20,
        "boto3_memory_mib": memory["boto3"] >> 20,
        "memory_growth_mib": (memory["fetch"] - least) >> 20,
    }


async def measure(*, small: int, large: int, rounds: int) -> dict[str, Any]:
    """Run the S3 server around the comparison."""
    directory = Path(tempfile.mkdtemp(prefix="weightshift-benchmark-"))
    try:
        async with s3_server(directory) as address:
            os.environ.update(address.environment)
            run = partial(compare, small=small, large=large, rounds=rounds)
            return await asyncio.to_thread(run, directory, address.endpoint)
    finally:
        shutil.rmtree(directory)


def bar(value: float, limit: float) -> dict[str, Any]:
    """Return a bar's value, limit and whether it is met."""
    return {"value": value, "bar": limit, "ok": value <= limit}


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="128 MiB instead of 512 MiB, fewer rounds")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    large, rounds = (128, 3) if arguments.quick else (512, 7)
    figures = asyncio.run(measure(small=64, large=large, rounds=rounds))
    bars = {
        "fetch_ratio": bar(figures["fetch_ratio"], 1.1),
        "memory_growth_mib": bar(figures["memory_growth_mib"], 8),
    }
    for name, figure in figures.items():
        print(f"{name:28} {figure}")
    for name, result in bars.items():
        print(f"{name:28} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "fetch", "figures": figures, "bars": bars}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
