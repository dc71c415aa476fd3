"""The real process as it ends: in the middle of a stream, of a load, of a swap; and when it only seems to."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from runtime.decoder_network import DecoderNetwork
from weightshift.contracts.instance import CandidatePhase
from weightshift.local.demo_models import ModelRecipe, train, write_artifact

DEADLINE = 30.0
DECODER = {"layers": 1, "heads": 1, "width": 8}
SLOW = "gated_models:SlowRanker"


class Stream:
    """One client of `/generate`; `events` holds what has come so far."""

    def __init__(self, runtime: Any, max_tokens: int) -> None:
        self.events: list[tuple[str, Any]] = []
        self._runtime = runtime
        self._body = {"prompt": "hello", "max_tokens": max_tokens}
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        kind = ""
        async with self._runtime.data.stream("POST", "/generate", json=self._body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    self.events.append((kind, json.loads(value)))

    def has_begun(self) -> bool:
        return len(self.events) > 2


@contextlib.asynccontextmanager
async def streaming(bench: Any, control: Any, directory: Path, **settings: str) -> AsyncIterator[Any]:
    """Run an instance that serves a slow decoder."""
    source = directory / "decoder"
    source.mkdir()
    torch.manual_seed(1)
    weights = DecoderNetwork(**DECODER).state_dict()
    save_file(
        {name: value for name, value in weights.items() if name != "head.weight"}, source / "m.safetensors"
    )
    (source / "config.json").write_text(json.dumps(DECODER))
    await control.add(bench.artifacts, source, architecture="slow-decoder", schema="bytes-v1")
    await control.publish("decoder")
    settings = {"ARCHITECTURES": "gated_models:SlowDecoder", "PROPAGATION_SECONDS": "0.1"} | settings
    cache = directory / "cache"
    cache.mkdir()
    async with bench.running(control, cache, **settings) as runtime:
        await bench.until(runtime.is_ready)
        yield runtime


async def ended(runtime: Any) -> int:
    status: int = await asyncio.wait_for(runtime.process.wait(), DEADLINE)
    return status


async def test_streams_end_by_themselves_or_typed_at_the_drain_deadline(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    async with streaming(bench, control, tmp_path, DRAIN_DEADLINE="2") as runtime:
        short, long = Stream(runtime, max_tokens=20), Stream(runtime, max_tokens=120)
        await bench.until(lambda: short.has_begun() and long.has_begun())
        runtime.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(short.task, long.task), DEADLINE)
        assert [kind for kind, _ in short.events] == ["token"] * 20 + ["done"]
        assert long.events[-1][0] == "error"
        assert long.events[-1][1]["type"] == "SessionEnded"
        assert 20 < len(long.events) < 120
        assert await ended(runtime) == 0


async def test_a_second_sigterm_ends_the_waiting(bench: Any, control: Any, tmp_path: Path) -> None:
    settings = {"DRAIN_DEADLINE": "600", "PROPAGATION_SECONDS": "600"}
    async with streaming(bench, control, tmp_path, **settings) as runtime:
        stream = Stream(runtime, max_tokens=120)
        await bench.until(stream.has_begun)
        runtime.process.send_signal(signal.SIGTERM)
        await bench.until(runtime.is_unready)
        runtime.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(stream.task, DEADLINE)
        assert stream.events[-1][1]["type"] == "SessionEnded"
        assert await ended(runtime) == 0


@contextlib.asynccontextmanager
async def swapping(bench: Any, control: Any, directory: Path, **settings: str) -> AsyncIterator[Any]:
    """Run an instance that serves v41 and whose candidate is inside its dry-run."""
    cache = directory / "cache"
    cache.mkdir()
    source = directory / "slow"
    write_artifact(train(ModelRecipe("slow", hidden=(64, 32), seed=7, steps=1)), source)
    await control.add(bench.artifacts, source, architecture="slow-ranker", schema="ranker-v1")
    await control.publish("v41")
    settings = {"ARCHITECTURES": SLOW, "PROPAGATION_SECONDS": "0.5", "DRAIN_DEADLINE": "2"} | settings
    async with bench.running(control, cache, **settings) as runtime:
        await bench.until(runtime.is_ready)
        await control.publish("slow")
        await bench.until((cache / "dry-run.reached").exists)
        yield runtime


async def test_sigterm_during_a_swap_fails_no_request(bench: Any, control: Any, tmp_path: Path) -> None:
    async with swapping(bench, control, tmp_path) as runtime:
        async with runtime.traffic().running() as traffic:
            await bench.until(lambda: traffic.artifacts["v41"] > 50)
            runtime.process.send_signal(signal.SIGTERM)
            await bench.until(runtime.is_unready)
        assert traffic.problems == []
        # The candidate never leaves its dry-run, which must not keep the process.
        assert await ended(runtime) == 0
    report = await control.report()
    assert report.draining
    assert report.actual.artifact_id == "v41"


async def test_sigterm_ends_the_process_though_a_swap_in_place_hangs(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    async with swapping(bench, control, tmp_path, SWAP_MODE="in-place") as runtime:
        runtime.process.send_signal(signal.SIGTERM)
        assert await ended(runtime) == 0


async def test_sigterm_during_the_first_load_ends_the_process(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    source = tmp_path / "slow"
    write_artifact(train(ModelRecipe("slow", hidden=(64, 32), seed=7, steps=1)), source)
    await control.add(bench.artifacts, source, architecture="slow-ranker", schema="ranker-v1")
    await control.publish("slow")
    cache = tmp_path / "cache"
    cache.mkdir()
    settings = {"ARCHITECTURES": SLOW, "PROPAGATION_SECONDS": "0", "DRAIN_DEADLINE": "1"}
    async with bench.running(control, cache, **settings) as runtime:
        await bench.until((cache / "dry-run.reached").exists)
        assert (await runtime.data.get("/startupz")).status_code == 503
        assert (await runtime.liveness.get("/livez")).status_code == 200
        runtime.process.send_signal(signal.SIGTERM)
        assert await ended(runtime) == 0
    async with bench.running(control, cache, **settings) as again:
        (cache / "dry-run").touch()
        await bench.until(again.is_ready)
    assert (await control.report()).candidate.phase is CandidatePhase.INSTALLED


async def test_a_blocked_event_loop_is_not_a_dead_process_until_it_has_been_for_long(
    bench: Any, control: Any, tmp_path: Path
) -> None:
    source = tmp_path / "blocking"
    write_artifact(train(ModelRecipe("blocking", hidden=(64, 32), seed=7, steps=1)), source)
    await control.add(bench.artifacts, source, architecture="blocking-ranker", schema="ranker-v1")
    await control.publish("blocking")
    cache = tmp_path / "cache"
    cache.mkdir()
    settings = {"ARCHITECTURES": "gated_models:BlockingRanker", "STALL_LIMIT": "3"}
    async with bench.running(control, cache, **settings) as runtime:

        async def liveness() -> int:
            status: int = (await runtime.liveness.get("/livez")).status_code
            return status

        async def is_given_up() -> bool:
            return await liveness() == 503

        await bench.until(runtime.is_ready)
        assert (await runtime.liveness.get("/readyz")).status_code == 404
        body = {"context": [7] * 8, "candidates": [[0.5] * 80]}
        request = asyncio.create_task(runtime.data.post("/predict", json=body))
        await bench.until((cache / "request.reached").exists)
        assert await liveness() == 200
        await bench.until(is_given_up)
        (cache / "request").touch()
        assert (await request).status_code == 200
        assert await liveness() == 200
